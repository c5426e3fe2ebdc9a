#include "optimizer/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "core/agreement.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

constexpr const char* kOtherPieces =
    "this rank owns other pieces since ddp_context_set_group, and the optimizer has no state of "
    "them; make a new optimizer, and load its state";

constexpr const char* kCannotJoin =
    "with DDP_CONTEXT_JOIN a rank in ddp_join would not step its optimizer with the others; create "
    "the context with DDP_CONTEXT_SHARD too, and call ddp_optimizer_in_step";

[[noreturn]] void refuse(ddp_status status, std::int32_t id, const Param& p, const char* why) {
    throw CallError({status, str("parameter '", p.name, "' ", why), -1, id});
}

void require_scale(double scale) {
    if (!(scale >= 0) || !std::isfinite(scale))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "scale is ", scale,
                  "; it must be finite and not negative");
}

template <class Piece>
bool same(const ShardPiece& a, const Piece& b) {
    return a.param == b.param && a.first == b.first && a.count == b.count;
}

}  // namespace

Optimizer::Optimizer(Context& context, std::string_view name, std::string_view options)
    : life_(context.life()), context_(context), name_(name), method_(make_method(name)) {
    context.group()->check();
    const Settings settings(method_->settings(), options, str("options of ", name));
    method_->check(settings);
    agree_on_model(*context.group(), context.number().tag(),
                   str("optimizer ", name, " ", settings.text()), {});
    require_updatable();
    const ParamTable& table = context.model().table;
    settings_.assign(table.params().size(), settings);
    const ContextStreams& streams = context_.model().streams;
    const StreamScope order(streams);
    if (!streams.empty())
        on_devices_ = std::make_unique<DeviceUpdates>(context.group()->timeout_ms());
    for (const ShardPiece& range : own_pieces()) {
        const Param& p = table[range.param];
        method_->add_arrays(pieces_.emplace_back(p, range, streams.stream(p.device)), settings);
    }
}

Context& Optimizer::context() const {
    if (life_.expired())
        fail_call(DDP_ERROR_INVALID_STATE, "the context of this optimizer was freed");
    context_.require_between_steps();
    return context_;
}

// The same on all ranks.
void Optimizer::require_updatable() const {
    const ContextOptions& options = context_.model().options;
    if (options.join && !options.reducer.shard) fail_call(DDP_ERROR_UNSUPPORTED, kCannotJoin);
    if (options.reducer.keep_local_unused)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "with DDP_CONTEXT_KEEP_LOCAL_UNUSED ranks have different gradients");
    const ParamTable& table = context_.model().table;
    for (std::int32_t id = 0; id < table.size(); ++id) {
        const Param& p = table[id];
        if (p.ignored || p.count == 0) continue;
        const auto refuse_it = [&](ddp_status status, const char* why) {
            refuse(status, id, p, why);
        };
        if (const char* why = method_->why_not_on_devices(); why && !is_cpu(p.device))
            refuse_it(DDP_ERROR_UNSUPPORTED, why);
        if (p.sparse || p.factored)
            refuse_it(DDP_ERROR_UNSUPPORTED,
                      "has a sparse or factored gradient, which optimizers do not read");
        if (!is_real(p.dtype) || !is_real(p.gradient.dtype))
            refuse_it(DDP_ERROR_UNSUPPORTED,
                      "is not of a real floating-point type; register it as DDP_PARAM_IGNORED");
        if (!p.data)
            refuse_it(DDP_ERROR_INVALID_STATE,
                      "has no data to update; register it with data or DDP_PARAM_IGNORED");
    }
}

std::vector<ShardPiece> Optimizer::own_pieces() const {
    if (context_.model().options.reducer.shard)
        return context_.committed().parts().layout->shards().mine();
    std::vector<ShardPiece> pieces;
    const ParamTable& table = context_.model().table;
    for (std::int32_t id = 0; id < table.size(); ++id)
        if (!table[id].ignored && table[id].count > 0)
            pieces.push_back({id, 0, table[id].count, true, 0});
    return pieces;
}

void Optimizer::require_same_pieces() const {
    const std::vector<ShardPiece> now = own_pieces();
    const bool alike =
        std::equal(now.begin(), now.end(), pieces_.begin(), pieces_.end(),
                   [](const ShardPiece& a, const OwnPiece& b) { return same(a, b.range()); });
    if (!alike) fail_call(DDP_ERROR_INVALID_STATE, kOtherPieces);
}

void Optimizer::set(std::int32_t param, const std::string& key, double value) {
    const ParamTable& table = context().model().table;
    if (param != -1) table.require(param);
    if (inside()) context_.group()->check();
    const auto begin = settings_.begin() + std::max(param, 0);
    const auto end = param == -1 ? settings_.end() : begin + 1;
    std::vector<Settings> changed(begin, end);
    for (Settings& one : changed) {
        one.set(key, value, stepped_ || inside());
        method_->check(one);
    }
    bool more = false;
    for (OwnPiece& piece : pieces_) {
        const std::int32_t id = piece.range().param;
        if (param != -1 && param != id) continue;
        const std::size_t before = piece.arrays().size();
        method_->add_arrays(piece, changed[static_cast<std::size_t>(param == -1 ? id : 0)]);
        more = more || piece.arrays().size() > before;
    }
    if (more) context_.model().streams.leave();  // the program may load them
    std::copy(changed.begin(), changed.end(), begin);
    if (const std::shared_ptr<const double> scale = inside_.lock()) step_inside(*scale);
}

// A hash of what all ranks do alike.
std::uint64_t Optimizer::hash(double scale) const {
    Hash hash;
    hash.add(name_);
    hash.add(std::bit_cast<std::uint64_t>(scale));
    for (const Settings& settings : settings_) settings.add_to(hash);
    return hash.value();
}

// The same on all ranks.
void Optimizer::require_matrices() const {
    const Model& model = context_.model();
    for (std::int32_t id = 0; id < model.table.size() && model.options.reducer.shard; ++id) {
        const Param& p = model.table[id];
        if (p.gradient.owner == Owner::kEachItsElements && !p.ignored && p.count > 0 &&
            method_->needs_whole(p, settings_[static_cast<std::size_t>(id)]))
            refuse(DDP_ERROR_INVALID_STATE, id, p,
                   "is updated as a whole matrix, and each rank owns elements of it; call "
                   "ddp_set_owner with DDP_OWNER_WHOLE or DDP_OWNER_REPLICATED before ddp_commit, "
                   "or set its option adamw to 1");
    }
}

std::vector<Update> Optimizer::updates(double scale) {
    const ReducerParts& parts = context_.committed().parts();
    std::vector<Update> all;
    for (OwnPiece& piece : pieces_) {
        const std::int32_t param = piece.range().param;
        if (!parts.totals.used[static_cast<std::size_t>(param)]) continue;
        const Param& p = piece.param();
        const auto* const gradient =
            static_cast<const std::byte*>(p.grad ? p.grad : parts.layout->view(param));
        const std::size_t before = static_cast<std::size_t>(piece.range().first);
        all.push_back({piece, gradient + before * dtype_size(p.gradient.dtype),
                       settings_[static_cast<std::size_t>(param)], scale,
                       piece.stream() ? on_devices_.get() : nullptr});
    }
    return all;
}

void Optimizer::require_steppable() const {
    if (torn_)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "an earlier step failed in the middle; load parameters and state of a moment "
                  "before it into a new optimizer");
    require_same_pieces();
    require_matrices();
}

void Optimizer::step(double scale) {
    Context& c = context();
    require_scale(scale);
    if (c.model().options.join) fail_call(DDP_ERROR_UNSUPPORTED, kCannotJoin);
    require_steppable();
    // Where each rank has pieces of its own they may have loaded different states.
    Hash all_do;
    all_do.add(hash(scale));
    all_do.add(static_cast<std::uint64_t>(c.committed().parts().totals.synced_steps));
    if (!c.model().options.reducer.shard)
        for (OwnPiece& piece : pieces_) all_do.add(static_cast<std::uint64_t>(piece.steps()));
    const std::uint64_t how = all_do.value();
    std::vector<Update> all = updates(scale);
    const StreamScope order(c.model().streams);
    c.committed().results().apply_means(how);
    torn_ = stepped_ = true;
    for (Update& update : all) {
        ++update.piece.steps();
        if (method_->measures()) method_->measure(update);
    }
    if (method_->measures()) {
        bring_norms_of_devices();
        add_norms_of_others(all, how);
    }
    for (Update& update : all) method_->step(update);
    if (on_devices_) on_devices_->launch();
    torn_ = false;
}

// The same on all ranks.
void Optimizer::require_inside() const {
    const ParamTable& table = context_.model().table;
    for (std::int32_t id = 0; id < table.size() && method_->measures(); ++id)
        if (const Param& p = table[id];
            p.gradient.owner == Owner::kEachItsElements && !p.ignored && p.count > 0)
            refuse(DDP_ERROR_INVALID_STATE, id, p,
                   "is updated with a norm over all of it, and each rank owns elements of it; call "
                   "ddp_set_owner with DDP_OWNER_WHOLE or DDP_OWNER_REPLICATED before ddp_commit, "
                   "or ddp_optimizer_step after each step");
}

void Optimizer::step_inside(double scale) {
    Context& c = context();
    require_scale(scale);
    Results& results = c.committed().results();
    results.require_updates();
    require_steppable();
    require_inside();
    const auto keeps = std::make_shared<const double>(scale);
    Updates updates{
        [self = shared_from_this(), keeps](const std::vector<const ddp_piece*>& pieces) {
            for (const ddp_piece* const piece : pieces)
                self->update_inside(*piece, 0, piece->count, *keeps);
        }};
    if (by_elements())
        updates.elements = [self = shared_from_this(), keeps](
                               const ddp_piece& piece, std::int64_t first, std::int64_t count) {
            self->update_inside(piece, first, count, *keeps);
        };
    results.set_updates(std::move(updates), hash(scale));
    inside_ = keeps;
}

bool Optimizer::by_elements() const {
    return !method_->measures() &&
           std::none_of(pieces_.begin(), pieces_.end(), [this](const OwnPiece& piece) {
               return method_->needs_whole(
                   piece.param(), settings_[static_cast<std::size_t>(piece.range().param)]);
           });
}

// Several threads may be here, each with pieces of its own.
void Optimizer::update_inside(const ddp_piece& given, std::int64_t first, std::int64_t count,
                              double scale) {
    const auto own = std::lower_bound(
        pieces_.begin(), pieces_.end(), given.param,
        [](const OwnPiece& piece, std::int32_t param) { return piece.range().param < param; });
    if (own == pieces_.end() || !same(own->range(), given))
        throw Error(ErrorInfo{DDP_ERROR_INVALID_STATE, kOtherPieces, -1, given.param});
    const auto before = static_cast<std::size_t>(first);
    Update update{*own,
                  static_cast<const std::byte*>(given.gradient) +
                      before * dtype_size(own->param().gradient.dtype),
                  settings_[static_cast<std::size_t>(given.param)],
                  scale,
                  nullptr,
                  before,
                  static_cast<std::size_t>(count)};
    if (first == 0) ++own->steps();
    if (method_->measures()) method_->measure(update);
    method_->step(update);
}

void Optimizer::bring_norms_of_devices() {
    if (!on_devices_) return;
    on_devices_->launch();
    on_devices_->bring_norms();
}

// For the parameters whose elements several ranks own. Sums of digits are exact.
void Optimizer::add_norms_of_others(std::vector<Update>& updates, std::uint64_t how) {
    const ReducerParts& parts = context_.committed().parts();
    std::map<std::int32_t, std::size_t> places;
    for (const Shards::Values& values : parts.layout->shards().values())
        for (const ShardPiece& piece : values.pieces)
            if (piece.count != parts.model.table[piece.param].count) places[piece.param] = 0;
    if (places.empty()) return;
    std::size_t count = 0;
    for (auto& [param, place] : places) place = count++;
    std::vector<cpu::ExactSum::Digits> digits(2 * count);
    for (Update& update : updates)
        if (const auto found = places.find(update.piece.range().param); found != places.end()) {
            digits[2 * found->second] = update.norms.values.digits();
            digits[2 * found->second + 1] = update.norms.direction.digits();
        }
    OpTag tag = context_.number().tag(Purpose::kUpdate);
    tag.facts.plan = how;
    parts.group->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, digits.data(),
                      digits.size() * cpu::ExactSum::kDigits, DDP_I64, DDP_SUM},
                     tag);
    for (Update& update : updates)
        if (const auto found = places.find(update.piece.range().param); found != places.end()) {
            update.norms.values.set_digits(digits[2 * found->second]);
            update.norms.direction.set_digits(digits[2 * found->second + 1]);
        }
}

std::vector<Optimizer::State> Optimizer::states() {
    std::vector<State> all;
    for (OwnPiece& piece : pieces_) {
        const ShardPiece& range = piece.range();
        for (const OwnPiece::Array& array : piece.arrays())
            all.push_back({array.name, range.param, piece.dtype(), range.first, range.count,
                           array.numbers.get(), piece.param().device});
        all.push_back({"step", range.param, DDP_I64, 0, 1, &piece.steps(), {}});
    }
    return all;
}

}  // namespace libddp
