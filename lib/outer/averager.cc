#include "outer/averager.h"

#include <algorithm>
#include <map>

#include "comm/pieces.h"
#include "core/hook_state.h"
#include "device/scratch.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

// Values travel together, at most this much at a time. A multiple of the size of every element.
constexpr std::size_t kMessageBytes = std::size_t{25} << 20;

// In the state of an averager. Every rank has the same, and so the file has no rank or world of its
// own.
const HookStateOwner kOwner{
    "averager", 0, 1, {"libddp-averager-state", "an averager", "ddp_averager_state_save"}};
constexpr const char* kSteps = "steps";
constexpr const char* kKind = "kind";

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
        if (!p.data && p.bytes > 0 && !p.ignored && is_floating(p.dtype))
            fail_call(DDP_ERROR_INVALID_STATE, "parameter '", p.name,
                      "' has no data to average; register it with data or DDP_PARAM_IGNORED");
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

void average_parameters(const Context& context, Group& group, std::int64_t step,
                        std::uint64_t outer) {
    require_values(context);
    group.check();
    if (group.world() == 1) return;
    const ContextStreams& streams = context.model().streams;
    // Devices in the order in which they come first, as their numbers may differ between ranks.
    std::map<ddp_dtype, std::vector<std::pair<StreamPtr, std::vector<Piece>>>> by_dtype;
    for (const Param& p : context.model().table.params()) {
        if (p.bytes == 0 || p.ignored || !is_floating(p.dtype)) continue;
        auto& devices = by_dtype[p.dtype];
        const StreamPtr stream = streams.stream(p.device);
        auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const auto& d) { return d.first == stream; });
        if (found == devices.end()) found = devices.insert(devices.end(), {stream, {}});
        found->second.push_back({static_cast<std::byte*>(p.data), p.bytes});
    }
    OpTag tag = context.number().tag(Purpose::kAverage);
    tag.facts.step = step;
    tag.facts.plan = outer;
    const StreamScope order(streams);
    for (const auto& [dtype, devices] : by_dtype)
        for (const auto& [stream, pieces] : devices) {
            Chunk chunk(group, dtype, stream, tag);
            for (const Piece& piece : pieces) chunk.add(piece);
            chunk.flush();
        }
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

// If several periods end at once, the longest counts. PyTorch counts a single period from the end
// of the warm-up, and several from the first step of all.
const Averager::Level* Averager::due() const {
    if (steps_ < warmup_steps_) return nullptr;
    const std::int64_t counted = levels_.size() == 1 ? steps_ - warmup_steps_ : steps_;
    const auto level = std::find_if(levels_.rbegin(), levels_.rend(),
                                    [counted](const Level& l) { return counted % l.period == 0; });
    return level == levels_.rend() ? nullptr : &*level;
}

std::int64_t Averager::shared_steps() const {
    if (steps_ <= warmup_steps_) return steps_;
    return steps_ - (steps_ - 1 - warmup_steps_) % levels_.front().period;
}

void Averager::go_back() {
    require_context();
    if (outer_) outer_->restore(context_.model().streams, context_.group()->timeout_ms());
    steps_ = shared_steps();
}

std::string Averager::rhythm() const {
    return str("every ", levels_.front().period, " steps after ", warmup_steps_,
               ", outer optimizer of kind ", outer_ ? outer_->kind() : DDP_OUTER_NONE);
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
    const Level* level = due();
    // A step that only counts cannot fail: the model has taken it already.
    if (level) context_.group()->check();
    const bool outer = outer_ && level == &levels_.back();
    const std::int32_t ranks = level ? average(*level, outer ? outer_->hash() : 0) : 0;
    if (outer) outer_->step(context_.model().streams, context_.group()->timeout_ms());
    ++steps_;
    return ranks;
}

void Averager::set_outer(const ddp_outer_options& options) {
    require_context_between_steps();
    if (options.kind == DDP_OUTER_NONE)
        outer_.reset();
    else if (outer_ && outer_->kind() == options.kind)
        outer_->set_rates(options);
    else
        outer_.emplace(context_.model().table, options);
}

std::vector<std::byte> Averager::state() const {
    require_context_between_steps();
    HookState state;
    state.numbers = {{kSteps, steps_}, {kKind, outer_ ? outer_->kind() : DDP_OUTER_NONE}};
    if (outer_) outer_->save(state);
    return write_hook_state(state, kOwner, context_.model().table, context_.group()->timeout_ms());
}

void Averager::load_state(const std::byte* data, std::size_t size) {
    require_context_between_steps();
    const HookState state =
        read_hook_state(data, size, kOwner, context_.model().table, /*shared_only=*/true);
    const auto steps = state.numbers.find(kSteps), kind = state.numbers.find(kKind);
    if (steps == state.numbers.end() || kind == state.numbers.end() || steps->second < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state is damaged (numbers); nothing was loaded");
    if (const ddp_outer_kind here = outer_ ? outer_->kind() : DDP_OUTER_NONE; kind->second != here)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state is of an outer optimizer of kind ",
                  kind->second, "; here the kind is ", here, " (DDP_OUTER_*)");
    if (outer_) outer_->load(state);
    steps_ = steps->second;
}

// A part of the ranks that fails would leave the others to wait for it in the next step.
std::int32_t Averager::average(const Level& level, std::uint64_t outer) {
    const auto& all = context_.group();
    if (level.ranks == 1 && levels_.size() > 1) return 1;
    const auto average_over = [&](Group& group) {
        in_call("ddp_average_parameters",
                [&] { average_parameters(context_, group, steps_, outer); });
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
