#include "backends/shm/team.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "util/deadline.h"
#include "util/spin.h"

namespace libddp::shm {
namespace {

const TeamOptions& checked(const TeamOptions& options) {
    if (options.size > kMostRanks)
        fail(DDP_ERROR_UNSUPPORTED, options.size,
             " ranks of one host; shared memory takes at most ", kMostRanks);
    return options;
}

}  // namespace

Team::Team(const ddp_backend_host& host, const TeamOptions& options,
           const backend::Failure& failure)
    : options_(checked(options)),
      failure_(failure),
      control_(host, options_, Deadline::after_ms(host.timeout_ms)),
      arena_(control_.segment(), control_.layout().blocks(options_.rank),
             control_.layout().blocks(options_.rank + 1), control_.state(options_.rank).freed,
             options_.size),
      patience_(options_, control_, failure_) {}

void Team::leave() {
    patience_.take_seat(-1);
    // Pairs with check_others(), which then sees what this rank has counted.
    control_.state(options_.rank).left.store(1);
    control_.wake_all();
}

// Once a collective, before it uses memory of others: a rank that gives up frees blocks that this
// rank may still read.
void Team::let_go_of_freed_blocks() {
    if (followed_ == sequence_) return;
    for (int rank = 0; rank < options_.size; ++rank)
        arena_.follow(rank, control_.state(rank).freed);
    followed_ = sequence_;
}

std::byte* Team::reach(int rank, Location location, std::size_t bytes, std::size_t alignment) {
    let_go_of_freed_blocks();
    // Before the blocks lie the counters of the team, on which all of its loops depend. A block of
    // another rank may be where the result goes.
    const Layout& layout = control_.layout();
    const bool its_own =
        location.block >= layout.blocks(rank) && location.block < layout.blocks(rank + 1);
    std::byte* memory = its_own ? arena_.reach(rank, location, bytes, alignment) : nullptr;
    if (memory) return memory;
    throw TeamError(ErrorInfo{
        DDP_ERROR_RANK_FAILED,
        str("rank ", options_.name_of(rank), " shares ", location.bytes, " bytes, of which ", bytes,
            " at ", location.within, " were to be used; its memory is damaged"),
        rank});
}

void Team::post(const ddp_collective& c, std::size_t inline_bytes, Location send, Location recv) {
    ++sequence_;
    patience_.take_seat(this_processor());
    posted_ = true;
    Post& post = control_.post(options_.rank, sequence_ & 1);
    post.send = send;
    post.recv = recv;
    post.signature_bytes = c.signature_size;
    if (c.signature_size > 0) std::memcpy(post.signature, c.signature, c.signature_size);
    if (c.carried) std::copy_n(c.carried, std::size(post.carried), post.carried);
    if (inline_bytes > 0) std::memcpy(post.data, c.send, inline_bytes);
    control_.state(options_.rank).posted.store(sequence_, std::memory_order_relaxed);
    // Releases the post, and that this rank has read those of the collective before.
    control_.shared().arrivals.add();
}

bool Team::all_here(std::int64_t patience_ns) {
    return patience_.spin(control_.shared().arrivals, from_all(sequence_), patience_ns);
}

void Team::meet(const ddp_collective& c) {
    patience_.wait(control_.shared().arrivals, from_all(sequence_), c.timeout_ms);
    posted_ = false;
    compare_signatures(c);
    if (c.carried) gather_carried(c.carried);
}

void Team::gather_carried(std::uint64_t* words) const {
    for (int other = 0; other < options_.size; ++other)
        for (std::size_t i = 0; i < std::size(Post{}.carried); ++i)
            words[i] |= post_of(other).carried[i];
}

void Team::compare_signatures(const ddp_collective& c) const {
    if (c.signature_size == 0) return;
    for (int other = 0; other < options_.size; ++other) {
        const Post& post = post_of(other);
        if (post.signature_bytes == c.signature_size &&
            std::memcmp(post.signature, c.signature, c.signature_size) == 0)
            continue;
        std::memcpy(c.theirs, post.signature, c.signature_size);
        throw TeamError(ErrorInfo{
            DDP_ERROR_MISMATCH,
            str("rank ", options_.name_of(other), " is about to do something else than rank ",
                options_.name_of(options_.rank)),
            other});
    }
}

// Numbers of a collective in the upper half make the words of the last one void without anybody
// resetting them. Relaxed: what a part reads came with the arrivals.
std::optional<std::uint32_t> Team::claim_part(std::uint32_t parts) {
    const std::uint64_t base = std::uint64_t{sequence_} << 32;
    std::uint64_t seen = control_.shared().claimed.load(std::memory_order_relaxed);
    for (;;) {
        const std::uint64_t next = seen >> 32 == sequence_ ? seen : base;
        const auto part = static_cast<std::uint32_t>(next);
        if (part >= parts) return std::nullopt;
        if (control_.shared().claimed.compare_exchange_weak(seen, next + 1,
                                                            std::memory_order_relaxed))
            return part;
    }
}

void Team::finish_part(std::uint32_t parts) {
    const std::uint64_t base = std::uint64_t{sequence_} << 32;
    std::uint64_t seen = control_.shared().done.load(std::memory_order_relaxed);
    std::uint64_t next;
    // Each rank's parts come to the rank that ends the last one, and from there with `completed`.
    do {
        next = (seen >> 32 == sequence_ ? seen : base) + 1;
    } while (!control_.shared().done.compare_exchange_weak(seen, next, std::memory_order_acq_rel));
    if (static_cast<std::uint32_t>(next) == parts) control_.shared().completed.set(sequence_);
}

void Team::wait_for_parts(const ddp_collective& c) {
    patience_.wait(control_.shared().completed, sequence_, c.timeout_ms);
}

void Team::barrier(const ddp_collective& c) {
    ++barriers_;
    control_.shared().barrier.add();
    patience_.wait(control_.shared().barrier, from_all(barriers_), c.timeout_ms);
}

void Team::confirm() const {
    failure_.check();
    // Pairs with the fence of give_up(): if a number that was read is younger than the failure, the
    // flag is seen.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (control_.shared().broken.load()) fail(DDP_ERROR_RANK_FAILED, kGaveUp);
}

void Team::give_up() {
    arena_.stop_reuse();
    control_.shared().broken.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    control_.wake_all();
}

}  // namespace libddp::shm
