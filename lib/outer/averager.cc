#include "outer/averager.h"

#include <algorithm>

#include "comm/pieces.h"
#include "core/hook_state.h"
#include "device/scratch.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

// In the state of an averager. Every rank has the same, and so the file has no rank or world of its
// own.
const HookStateOwner kOwner{
    "averager", 0, 1, {"libddp-averager-state", "an averager", "ddp_averager_state_save"}};
constexpr const char* kSteps = "steps";
constexpr const char* kKind = "kind";
constexpr const char* kShared = "shared_steps";

// Values of one dtype and device on their way to the average and back.
class Chunk {
public:
    Chunk(Group& group, ddp_dtype dtype, StreamPtr stream, const OpTag& tag)
        : group_(group), dtype_(dtype), stream_(std::move(stream)), tag_(tag.on(stream_)) {}

    void add(Piece piece) {
        while (piece.bytes > 0) {
            const std::size_t part = std::min(piece.bytes, kMessageBytes - used_);
            pieces_.push_back({piece.data, part});
            used_ += part;
            piece.data += part;
            piece.bytes -= part;
            if (used_ == kMessageBytes) flush();
        }
    }

    // Values change only once their average is there.
    void flush() {
        if (used_ == 0) return;
        std::byte* together = memory_.require(used_, stream_);
        gather_pieces(together, pieces_, stream_);
        group_.run({DDP_COLLECTIVE_ALLREDUCE, nullptr, together, used_ / dtype_size(dtype_), dtype_,
                    DDP_AVG, 0, device_of_stream(stream_)},
                   tag_);
        scatter_pieces(together, pieces_, stream_);
        pieces_.clear();
        used_ = 0;
    }

private:
    Group& group_;
    const ddp_dtype dtype_;
    const StreamPtr stream_;
    const OpTag tag_;
    ScratchMemory memory_;
    std::vector<Piece> pieces_;
    std::size_t used_ = 0;
};

// Each would stay another one on each rank.
void require_values(const Context& context) {
    for (const Param& p : context.model().table.params())
        if (!p.data && has_average(p))
            fail_call(DDP_ERROR_INVALID_STATE, "parameter '", p.name,
                      "' has no data to average; register it with data or DDP_PARAM_IGNORED");
}

std::vector<std::int32_t> averaged_params(const Context& context) {
    std::vector<std::int32_t> params;
    for (std::int32_t i = 0; i < context.model().table.size(); ++i)
        if (has_average(context.model().table[i])) params.push_back(i);
    return params;
}

OpTag tag_of(const Context& context) {
    OpTag tag = context.number().tag(Purpose::kAverage);
    tag.traffic = context.model().averages;
    return tag;
}

// An error of a group of neighbouring ranks, which counts them from 0, with the ranks of the larger
// group.
ErrorInfo in_numbers_of_all(ErrorInfo error, const Group& part, std::int32_t own_rank) {
    const std::int32_t first = own_rank - part.rank();
    if (first == 0) return error;
    if (error.rank >= 0) error.rank += first;
    error.message = str("among ranks ", first, " to ", first + part.world() - 1,
                        ", here counted from 0: ", error.message);
    return error;
}

}  // namespace

void average_parameters(const Context& context, Group& group, const OpTag& tag,
                        const std::vector<std::int32_t>& params) {
    require_values(context);
    group.check();
    if (group.world() == 1) return;
    const StreamScope order(context.model().streams);
    for (const SumBatch& batch : batches_of(context, params)) {
        Chunk chunk(group, batch.dtype, batch.stream, tag);
        for (const std::int32_t id : batch.params) {
            const Param& p = context.model().table[id];
            chunk.add({static_cast<std::byte*>(p.data), p.bytes});
        }
        chunk.flush();
    }
}

void average_parameters(const Context& context, Group& group) {
    average_parameters(context, group, tag_of(context), averaged_params(context));
}

Averager::Averager(Context& context, std::vector<Level> levels, std::int64_t warmup_steps)
    : life_(context.life()),
      context_(context),
      levels_(std::move(levels)),
      warmup_steps_(warmup_steps),
      made_for_(context.group()) {
    require_values(context);
    Group& all = *context.group();
    for (Level& level : levels_)
        if (level.ranks > 1 && level.ranks < all.world())
            level.group = all.split(all.rank() / level.ranks, all.rank(), context.number().tag());
}

// Smaller groups are parts of the group that the context had then.
void Averager::require_same_group() const {
    if (levels_.size() > 1 && made_for_.lock() != context_.group())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context has another group since the averager was made; make a new averager");
}

// Steps from one turn of a fragment to the next one's. Without outer parameters the model has a turn
// as a whole.
std::int64_t Averager::spacing() const {
    const bool turns = outer_ && outer_->has_parameters();
    return levels_.front().period / (turns ? outer_->options().fragments : 1);
}

// PyTorch counts a single period from the end of the warm-up, and several from the first step of
// all.
std::int64_t Averager::counted() const {
    return levels_.size() == 1 ? steps_ - warmup_steps_ : steps_;
}

// If several periods end at once, the longest counts.
const Averager::Level* Averager::due() const {
    if (steps_ < warmup_steps_) return nullptr;
    if (levels_.size() == 1) return counted() % spacing() == 0 ? &levels_.front() : nullptr;
    const auto level = std::find_if(levels_.rbegin(), levels_.rend(),
                                    [this](const Level& l) { return counted() % l.period == 0; });
    return level == levels_.rend() ? nullptr : &*level;
}

// As if every average had come at the end of a period.
std::int64_t Averager::last_shared(std::int64_t steps) const {
    if (steps <= warmup_steps_) return steps;
    return steps - (steps - 1 - warmup_steps_) % levels_.front().period;
}

void Averager::set_steps(std::int64_t steps) {
    travelling_.reset();
    steps_ = steps;
    shared_steps_ = last_shared(steps);
}

void Averager::go_back() {
    require_context();
    travelling_.reset();
    if (outer_) outer_->restore();
    steps_ = shared_steps_;
}

std::string Averager::rhythm() const {
    std::string text = str("every ", levels_.front().period, " steps after ", warmup_steps_,
                           ", outer optimizer of kind ", outer_kind());
    if (outer_)
        text += str(", in ", outer_->options().fragments, " fragments (", std::hex,
                    outer_->fragments_hash(), std::dec, "), delay ", outer_->options().delay,
                    ", alpha ", outer_->options().alpha);
    return text;
}

void Averager::require_context() const {
    if (life_.expired())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context of this averager was freed; an averager uses its context");
}

void Averager::require_context_between_steps() const {
    require_context();
    context_.require_between_steps();
}

std::int32_t Averager::step() {
    require_context_between_steps();
    require_same_group();
    if (travelling_ && !travelling_->fits(context_.group())) travelling_.reset();
    const Level* level = due();
    // A step that only counts cannot fail: the model has taken it already.
    if (level || is_due(travelling_)) context_.group()->check();
    std::int32_t ranks = 0;
    bool shared = steps_ < warmup_steps_;
    if (level) {
        const bool all = level == &levels_.back();
        ranks = outer_ && all ? take_turn() : average(*level, tag(), averaged_params(context_));
        shared = all && ranks > 0;
    }
    if (is_due(travelling_)) {
        mix();
        ranks = context_.group()->world();
        shared = true;
    }
    ++steps_;
    if (shared) shared_steps_ = steps_;
    return ranks;
}

bool Averager::is_due(const std::optional<FragmentSum>& sum) const {
    return sum && sum->facts().due == steps_;
}

OpTag Averager::tag() const {
    OpTag tag = tag_of(context_);
    tag.facts.step = steps_;
    if (!outer_) return tag;
    tag.facts.plan = outer_->hash();
    tag.facts.hook = outer_->fragments_hash();
    return tag;
}

// The next fragment leaves, or all of the model becomes the outer parameters. Returns over how many
// ranks the values are averaged by now.
std::int32_t Averager::take_turn() {
    const Level& all = levels_.back();
    if (!outer_->has_parameters()) {
        const std::int32_t ranks = average(all, tag(), averaged_params(context_));
        outer_->start();
        return ranks;
    }
    const std::int32_t fragments = outer_->options().fragments;
    const std::int64_t turn = counted() / spacing() % fragments + fragments - 1;
    const auto fragment = static_cast<std::int32_t>(turn % fragments);
    if (outer_->at_once()) {
        const std::int32_t ranks = average(all, tag(), outer_->params(fragment));
        outer_->step(fragment);
        return ranks;
    }
    require_values(context_);
    FragmentSum sum = outer_->collect(fragment, steps_ + outer_->options().delay);
    sum.submit(context_.group(), tag());
    travelling_ = std::move(sum);
    return 0;
}

void Averager::mix() {
    in_call("ddp_average_parameters", [&] { travelling_->wait(); });
    outer_->step(*travelling_);
    travelling_.reset();
}

void Averager::set_outer(const ddp_outer_options& options) {
    require_context_between_steps();
    require_turns(options);
    if (options.kind == DDP_OUTER_NONE) {
        travelling_.reset();
        outer_.reset();
    } else if (outer_kind() == options.kind) {
        const ddp_outer_options before = outer_->options();
        outer_->set_options(options);
        if (before.fragments != options.fragments || before.delay != options.delay)
            travelling_.reset();
    } else {
        travelling_.reset();
        outer_.emplace(context_, options);
    }
}

void Averager::require_outer() const {
    require_context_between_steps();
    if (!outer_)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the averager has no outer optimizer; call ddp_averager_set_outer");
}

void Averager::set_fragments(const std::vector<std::int32_t>& fragment_of) {
    require_outer();
    const ParamTable& table = context_.model().table;
    const std::int32_t fragments = outer_->options().fragments;
    if (fragment_of.size() != static_cast<std::size_t>(table.size()))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "count is ", fragment_of.size(),
                  ", and the context has ", table.size(), " parameters");
    std::vector<bool> used(static_cast<std::size_t>(fragments));
    for (const std::int32_t i : averaged_params(context_)) {
        const std::int32_t fragment = fragment_of[static_cast<std::size_t>(i)];
        if (fragment < 0 || fragment >= fragments)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "fragment_of[", i, "], of '", table[i].name,
                      "', is ", fragment, "; there are ", fragments,
                      " fragments, counted from 0 (options.fragments)");
        used[static_cast<std::size_t>(fragment)] = true;
    }
    for (std::int32_t f = 0; f < fragments; ++f)
        if (!used[static_cast<std::size_t>(f)])
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "fragment ", f, " has no parameter");
    travelling_.reset();
    outer_->set_fragments(fragment_of);
}

// Turns of a fragment end before the next fragment's begins.
void Averager::require_turns(const ddp_outer_options& o) const {
    const std::int64_t period = levels_.back().period;
    if (levels_.size() > 1 && (o.fragments > 1 || o.delay > 0 || o.alpha > 0 || o.sent_dtype != 0))
        fail_call(DDP_ERROR_UNSUPPORTED, "the averager has ", levels_.size(),
                  " periods; fragments, delay, alpha and sent_dtype need one with one period");
    if (period % o.fragments != 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->fragments is ", o.fragments,
                  "; it must divide the period, ", period);
    if (o.delay >= period / o.fragments)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->delay is ", o.delay,
                  "; it must be less than period / fragments, ", period / o.fragments);
}

std::vector<std::byte> Averager::state() const {
    require_context_between_steps();
    HookState state;
    state.numbers = {{kSteps, steps_}, {kKind, outer_kind()}, {kShared, shared_steps_}};
    if (outer_) outer_->save(state);
    const std::int64_t timeout_ms = context_.group()->timeout_ms();
    std::vector<std::vector<std::byte>> fetched;  // from devices, until the file is written
    if (travelling_ && travelling_->fits(context_.group()))
        travelling_->save(state, timeout_ms, fetched);
    return write_hook_state(state, kOwner, context_.model().table, timeout_ms);
}

void Averager::load_state(const std::byte* data, std::size_t size) {
    require_context_between_steps();
    const HookState state =
        read_hook_state(data, size, kOwner, context_.model().table, /*shared_only=*/true);
    const auto steps = state.numbers.find(kSteps), kind = state.numbers.find(kKind),
               shared = state.numbers.find(kShared);
    if (steps == state.numbers.end() || kind == state.numbers.end() || steps->second < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state is damaged (numbers); nothing was loaded");
    if (kind->second != outer_kind())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state is of an outer optimizer of kind ",
                  kind->second, "; here the kind is ", outer_kind(), " (DDP_OUTER_*)");
    std::optional<FragmentSum> sum = FragmentSum::load(state, context_.model().table);
    if (sum && sum->facts().due < steps->second)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state is damaged (numbers); nothing was loaded");
    if (sum && (!outer_ || sum->params() != outer_->params(sum->facts().fragment)))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state has fragment ", sum->facts().fragment,
                  " on its way, which has other parameters here; set the same fragments first");
    if (outer_) outer_->load(state);
    set_steps(steps->second);
    if (shared != state.numbers.end()) shared_steps_ = shared->second;
    travelling_ = std::move(sum);
}

// A part of the ranks that fails would leave the others to wait for it in the next step.
std::int32_t Averager::average(const Level& level, const OpTag& tag,
                               const std::vector<std::int32_t>& params) {
    const auto& all = context_.group();
    if (level.ranks == 1 && levels_.size() > 1) return 1;
    const auto average_over = [&](Group& group) {
        in_call("ddp_average_parameters",
                [&] { average_parameters(context_, group, tag, params); });
    };
    if (!level.group) {
        average_over(*all);
        return all->world();
    }
    try {
        average_over(*level.group);
    } catch (const Error& error) {
        if (!level.group->broken()) throw;
        throw Error(
            all->break_everywhere(in_numbers_of_all(error.info(), *level.group, all->rank())));
    }
    return level.ranks;
}

}  // namespace libddp
