// Collectives of a link: how they are submitted, and how each runs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "comm/all_to_all.h"
#include "comm/comparisons.h"
#include "comm/link.h"
#include "comm/signature.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

// How long the thread that computes looks for the other ranks. Ranks that compute the same come
// within this, and then stay in step: each reduces a part of every bucket. One that gave up early
// would run ahead and leave all reducing to the other. A rank that is early has to wait at the end
// of the step anyway.
constexpr std::int64_t kPatienceNs = 1'000'000;

bool reduces(ddp_collective_kind kind) {
    return kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_REDUCE_SCATTER;
}

// The bytes that this rank contributes.
std::size_t contributed(const Collective& c, std::int32_t world) {
    const std::size_t count =
        c.kind == DDP_COLLECTIVE_ALL_TO_ALL ? sent_elements(c, world) : c.count;
    return count * dtype_size(c.dtype);
}

void count_sent(const Collective& c, const OpTag& tag, std::int32_t world) {
    if (tag.traffic) tag.traffic->sent.fetch_add(contributed(c, world), std::memory_order_relaxed);
}

void validate(const Collective& c, const OpTag& tag, std::int32_t world) {
    if (dtype_size(c.dtype) == 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "dtype ", c.dtype, " is unknown");
    if (!c.recv && c.count > 0 && !c.send_counts)
        fail(DDP_ERROR_INVALID_ARGUMENT, c.kind == DDP_COLLECTIVE_BROADCAST ? "buffer" : "recv",
             " is NULL, but count is ", c.count);
    if (c.root < 0 || c.root >= world)
        fail(DDP_ERROR_INVALID_ARGUMENT, "root is ", c.root, ", but the ranks are 0 to ",
             world - 1);
    if (c.count > SIZE_MAX / 16 / static_cast<std::size_t>(world))
        fail(DDP_ERROR_INVALID_ARGUMENT, "count ", c.count, " is too large");
    if (c.kind == DDP_COLLECTIVE_REDUCE_SCATTER && !c.send && !c.counts && c.count > 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "send is NULL: reduce_scatter does not work in place");
    if (c.counts &&
        (c.counts->size() != static_cast<std::size_t>(world) || c.send ||
         std::accumulate(c.counts->begin(), c.counts->end(), std::uint64_t{0}) != c.count))
        fail(DDP_ERROR_INTERNAL, "parts of ", c.counts->size(), " ranks are not the message");
    if (c.kind == DDP_COLLECTIVE_ALL_TO_ALL) validate_all_to_all(c, world);
    if (!is_cpu(c.device)) {
        if (!tag.order.stream || !same_device(tag.order.stream->device(), c.device))
            fail(DDP_ERROR_INTERNAL, "a collective on ", device_name(c.device),
                 " without a stream of that device");
    }
    if (!reduces(c.kind)) return;
    if (c.take && !is_floating(c.dtype))
        fail(DDP_ERROR_INTERNAL, "a mean of ", dtype_name(c.dtype),
             " is divided after it is taken");
    if (c.op < DDP_SUM || c.op > DDP_MAX)
        fail(DDP_ERROR_INVALID_ARGUMENT, "op ", c.op, " is unknown");
    if (!cpu::can_reduce(c.dtype, c.op == DDP_AVG ? DDP_SUM : c.op))
        fail(DDP_ERROR_UNSUPPORTED, "this op cannot be applied to ", dtype_name(c.dtype));
}

}  // namespace

// One collective on its way: numbered, compared, scaled, run. Every function runs with the turn of
// the link's executor.
class LinkOperation final : public Operation {
public:
    LinkOperation(Link& link, const Collective& collective, OpTag tag)
        : link_(link), collective_(collective), tag_(std::move(tag)), compared_{link} {
        if (on_device()) submitted_ = tag_.order.stream->record();
    }

    bool ready() override;
    ErrorInfo run() noexcept override;

private:
    // An operation's signature, as ranks compare it, and the way of its errors.
    struct Compared {
        // ok: the other ranks do the same.
        ErrorInfo with_others();
        ErrorInfo disagree(std::int32_t other);
        ErrorInfo resolve(ErrorInfo error);
        WaitTarget target() const { return {mine.step, mine.bucket, mine.kind}; }

        Link& link;
        Signature mine{}, theirs{};
        std::shared_ptr<const std::string> label{};
        std::shared_ptr<Group> kept{};  // an object that fails with the operation may own the group
    };
    class Behind;

    bool on_device() const { return !is_cpu(collective_.device); }
    // The backend takes the memory of the device as it is.
    bool on_device_transport() const { return on_device() && link_.devices_->transport(); }
    // Each rank gives counts of its own, which ranks tell each other first.
    bool tells_counts() const { return collective_.send_counts != nullptr; }
    bool may_be_behind() const {
        return on_device() && !tells_counts() && tag_.comparisons && link_.devices_->comparisons();
    }
    bool is_checked() const;
    void begin();
    bool ready_on_device();
    void place_division();
    ErrorInfo tell_counts();
    void run_on_device();
    void compare_behind();
    // Most operations do not need the label, whose copy costs a little.
    Compared& labelled() {
        compared_.label = tag_.label;
        return compared_;
    }
    record::Entry entry(record::EventKind kind) const;

    Link& link_;
    const Collective collective_;
    const OpTag tag_;
    EventPtr submitted_;  // on a device: where the tag's stream was then
    bool begun_ = false;
    std::int64_t begun_ns_ = 0;
    bool checked_ = false;  // ranks compare what they are about to do
    bool behind_ = false;   // they do that on another thread, and nobody waits for them here
    Division division_;
    std::vector<std::uint64_t> told_counts_;  // of all ranks
    Compared compared_;
    ddp_collective op_{};
    std::uint64_t copied_ = 0;
};

WorkPtr Link::submit(const Collective& collective, OpTag tag) {
    validate(collective, tag, world());
    check();
    interrupt::refuse_inside_check();
    count_sent(collective, tag, world());
    counts_->give();
    // The operation runs while the executor lives, which the group's destructor ends first.
    const WaitTarget target{tag.facts.step, tag.facts.bucket, collective.kind};
    const StreamPtr stream = tag.order.stream;
    auto work = executor_->submit(
        std::make_unique<LinkOperation>(*this, collective, std::move(tag)), target);
    if (!is_cpu(collective.device)) work->enqueued_on(stream, config_.timeout_ms);
    return work;
}

// A blocking call with nothing else in flight needs no work handle.
void Link::run(const Collective& collective, const OpTag& tag) {
    validate(collective, tag, world());
    check();
    interrupt::refuse_inside_check();
    LinkOperation operation(*this, collective, tag);
    const auto result = executor_->run_now(operation);
    if (!result) return submit_and_wait(collective, tag);
    counts_->give();
    if (!result->ok()) throw Error(*result);
    count_sent(collective, tag, world());
}

bool LinkOperation::is_checked() const {
    const bool unchecked = (link_.config_.flags & DDP_GROUP_NO_MATCH_CHECK) &&
                           !link_.transport_->has(DDP_BACKEND_NEEDS_MATCH);
    return link_.world() > 1 && !unchecked;
}

// The number is given when the turn comes, and so counts the same on every rank.
void LinkOperation::begin() {
    if (begun_) return;
    begun_ = true;
    const Collective& c = collective_;
    if (c.counts) op_.counts = c.counts->data();
    if (c.take) {
        op_.take = [](void* taker, const void* data, std::size_t offset, std::size_t bytes) {
            (*static_cast<const Collective::Take*>(taker))(data, offset, bytes);
        };
        op_.taker = const_cast<Collective::Take*>(&c.take);
    }
    compared_.mine = compared_.theirs = {
        tag_.facts,
        c.kind,
        c.dtype,
        c.op,
        c.root,
        c.device.kind,
        link_.next_sequence_++,
        tells_counts() ? 0 : c.count,
        tells_counts() ? kUnevenParts : hash_of_parts(op_.counts, link_.world())};
    checked_ = is_checked();
    behind_ = checked_ && may_be_behind();
    if (link_.monitor_ && !behind_) link_.monitor_->progress().begins(compared_.mine);

    if (link_.recorder_) {
        record::Entry began = entry(record::EventKind::kOperationBegin);
        began.time_ns = begun_ns_ = record::now_ns();
        link_.recorder_.write(began);
    }

    op_.struct_size = sizeof op_;
    op_.kind = c.kind;
    op_.dtype = c.dtype;
    op_.op = c.op;
    op_.root = c.root;
    op_.send = c.send || c.kind == DDP_COLLECTIVE_ALL_TO_ALL ? c.send : c.recv;
    op_.recv = c.recv;
    op_.count = tells_counts() ? 0 : c.count;
    op_.scale = 1;
    op_.timeout_ms = link_.config_.timeout_ms;
    op_.device = c.device;
    op_.copied_bytes = &copied_;
    if (c.kind == DDP_COLLECTIVE_ALLGATHER && !c.send)
        op_.send = part_of(op_, c.recv, link_.rank());
    if (c.kind == DDP_COLLECTIVE_REDUCE_SCATTER && c.counts)
        op_.recv = part_of(op_, c.recv, link_.rank());
    if (reduces(c.kind) && c.op == DDP_AVG) place_division();
    if (CarriedWords* const carried = tag_.carried.get();
        carried && carried->link == &link_ && !carried->taken &&
        link_.transport_->has(DDP_BACKEND_CARRIES) && !on_device_transport()) {
        carried->taken = true;
        op_.carried = carried->words;
    }
    // Operations of a device's own backend are compared on the host.
    if (checked_ && link_.transport_->has(DDP_BACKEND_COMPARES) && !on_device_transport()) {
        op_.signature = &compared_.mine;
        op_.theirs = &compared_.theirs;
        op_.signature_size = sizeof compared_.mine;
    }
}

// The only place that decides where a mean is divided. DDP_AVG is a sum with a scale. A backend
// that cannot apply it gets values that are divided before, which keeps sums of low precision
// finite. Division after the sum is for integers, which division before would ruin, and for a
// reduce_scatter that is not in place, whose input belongs to the program.
void LinkOperation::place_division() {
    const Transport& transport =
        on_device_transport() ? *link_.devices_->transport() : *link_.transport_;
    const bool fuses = transport.has(DDP_BACKEND_FUSES_SCALE);
    const bool in_place = collective_.kind == DDP_COLLECTIVE_ALLREDUCE || collective_.counts;
    const bool before = in_place && is_floating(collective_.dtype);
    op_.op = DDP_SUM;
    (fuses ? op_.scale : before ? division_.before : division_.after) = 1.0 / link_.world();
}

bool LinkOperation::ready() {
    if (on_device()) return ready_on_device();
    if (!link_.transport_->has_ready() || !link_.devices_->compared() || tells_counts())
        return false;
    begin();
    if (division_.before != 1 || division_.after != 1) return false;
    try {
        return link_.transport_->ready(op_, kPatienceNs);
    } catch (const std::exception&) {
        return false;  // run() fails in the same way, and says why
    }
}

// Nothing to wait for: at once, in order with what the calling thread enqueues before and after.
// But a backend may wait, and where it uses a device for the first time it connects with others.
bool LinkOperation::ready_on_device() {
    const bool at_once =
        link_.world() == 1 ||
        (!tells_counts() && on_device_transport() && link_.devices_->has_path(collective_.device) &&
         link_.executor_->may_lend() && (may_be_behind() || !is_checked()));
    if (at_once) begin();
    return at_once;
}

record::Entry LinkOperation::entry(record::EventKind kind) const {
    return {.kind = kind,
            .step = tag_.facts.step,
            .bucket = tag_.facts.bucket,
            .bytes = contributed(collective_, link_.world()),
            .sequence = compared_.mine.sequence,
            .detail = record::operation_detail(collective_.kind,
                                               static_cast<std::int32_t>(tag_.facts.purpose)),
            .since_ns = begun_ns_};
}

ErrorInfo LinkOperation::run() noexcept try {
    if (link_.broken()) return link_.verdict();
    ErrorInfo result;
    try {
        // Others come to comparisons and to operations of the host in the same order.
        if (!may_be_behind()) link_.devices_->finish_comparisons();
        begin();
        if (behind_)
            compare_behind();
        else if (checked_ && !op_.signature)
            result = labelled().with_others();
        if (result.ok() && tells_counts()) result = tell_counts();
        if (result.ok() && on_device()) {
            run_on_device();
        } else if (result.ok()) {
            if (division_.before != 1) {
                cpu::scale_copy(collective_.recv, op_.send, op_.count, op_.dtype, division_.before);
                op_.send = collective_.recv;
            }
            link_.transport_->run(op_);
            if (division_.after != 1)
                cpu::scale_copy(op_.recv, op_.recv, part_count(op_, link_.rank()), op_.dtype,
                                division_.after);
        }
        if (tag_.traffic) tag_.traffic->copied.fetch_add(copied_, std::memory_order_relaxed);
    } catch (...) {
        result = labelled().resolve(caught());
    }
    if (link_.monitor_ && !behind_) link_.monitor_->progress().ends();
    if (link_.recorder_) {
        record::Entry ended = entry(record::EventKind::kOperationEnd);
        ended.param = result.code;
        link_.recorder_.write(ended);
    }
    link_.counts_->end(result.ok());
    return result;
} catch (...) {
    return caught();
}

// Backends get the counts of all ranks, so ranks compare them whatever the group's flags.
ErrorInfo LinkOperation::tell_counts() {
    const auto mine = told_counts(collective_);
    std::vector<std::uint64_t> told(mine.size() * static_cast<std::size_t>(link_.world()));
    ddp_collective gather{};
    gather.struct_size = sizeof gather;
    gather.kind = DDP_COLLECTIVE_ALLGATHER;
    gather.dtype = DDP_U8;
    gather.op = DDP_SUM;
    gather.send = mine.data();
    gather.recv = told.data();
    gather.count = mine.size() * sizeof mine[0];
    gather.scale = 1;
    gather.timeout_ms = op_.timeout_ms;
    gather.signature = op_.signature;
    gather.theirs = op_.theirs;
    gather.signature_size = std::exchange(op_.signature_size, 0);
    link_.transport_->run(gather);
    ErrorInfo differ = agree_on_counts(told, link_.world(), op_.dtype, told_counts_);
    op_.counts = told_counts_.data();
    for (const std::uint64_t count : told_counts_) op_.count += static_cast<std::size_t>(count);
    if (differ.ok()) return {};
    differ.bucket = compared_.mine.bucket;
    differ.step = compared_.mine.step;
    compared_.kept = link_.weak_from_this().lock();
    return link_.break_everywhere(differ);
}

void LinkOperation::run_on_device() {
    const OpMemory& kept = tag_.memory;
    link_.devices_->path(collective_.device)
        .run(op_, division_,
             {*tag_.order.stream, *submitted_, kept.enqueued ? kept.enqueued : kept.used,
              compared_.mine});
}

// A comparison with the other ranks, on the thread for these.
class LinkOperation::Behind final : public Operation {
public:
    explicit Behind(Compared compared) : compared_(std::move(compared)) {}

    ErrorInfo run() noexcept override try {
        Link& link = compared_.link;
        if (link.broken()) return link.verdict();
        if (link.monitor_) link.monitor_->progress().begins(compared_.mine);
        ErrorInfo result;
        try {
            result = compared_.with_others();
        } catch (...) {
            result = compared_.resolve(caught());
        }
        if (link.monitor_) link.monitor_->progress().ends();
        return result;
    } catch (...) {
        return caught();
    }

private:
    Compared compared_;
};

// Before the operation itself: that may wait for other ranks where they meet for the first time, or
// where they differ.
void LinkOperation::compare_behind() {
    tag_.comparisons->add(
        link_.devices_->compare_behind(std::make_unique<Behind>(labelled()), compared_.target()));
}

ErrorInfo LinkOperation::Compared::with_others() {
    std::int32_t other = -1;
    const bool same =
        link.transport_->match(&mine, &theirs, sizeof mine, link.config_.timeout_ms, &other);
    return same ? ErrorInfo{} : disagree(other);
}

ErrorInfo LinkOperation::Compared::disagree(std::int32_t other) {
    kept = link.weak_from_this().lock();
    return link.break_everywhere(
        {DDP_ERROR_MISMATCH,
         describe_mismatch(mine, link.rank(), theirs, other, label ? *label : "",
                           [this](std::int32_t context, std::int32_t param) {
                               return link.contexts_.param_name(context, param);
                           }),
         other, frozen_on_one(mine, theirs), mine.bucket, mine.step});
}

ErrorInfo LinkOperation::Compared::resolve(ErrorInfo error) {
    kept = link.weak_from_this().lock();
    // A backend may find that ranks differ in something else, and then leaves `theirs` alone.
    const bool differ = std::memcmp(&mine, &theirs, sizeof mine) != 0;
    if (error.code == DDP_ERROR_MISMATCH && differ) return disagree(error.rank);
    if (is_interruption(error)) return link.break_everywhere(interruption(link.rank(), target()));
    error.bucket = mine.bucket;
    error.step = mine.step;
    if (!may_be_an_echo(error.code)) error = on_rank(link.rank(), std::move(error));
    return link.break_everywhere(
        link.monitor_ ? link.monitor_->resolve(error, describe(mine), advice_for(mine)) : error);
}

}  // namespace libddp
