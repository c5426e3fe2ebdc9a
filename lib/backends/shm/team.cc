#include "backends/shm/team.h"

#include <sched.h>

#include <chrono>
#include <cstring>

#include "backends/common/keys.h"
#include "backends/shm/handoff.h"
#include "util/deadline.h"
#include "util/interrupt.h"
#include "util/processors.h"
#include "util/spin.h"

namespace libddp::shm {
namespace {

// How long a wait spins before it sleeps. Waking a sleeper takes longer than this.
constexpr std::int64_t kSpinNs = 50'000;
// Where there are more ranks than processors, the others are given theirs this often before sleeping.
constexpr int kYields = 4;
// How often a sleeper looks up although nobody woke it.
constexpr std::int64_t kGlanceMs = 50;

constexpr char kGaveUp[] = "a rank went away: another rank of the same host gave up";

}  // namespace

Team::Team(const ddp_backend_host& host, const Options& options, const backend::Failure& failure)
    : options_(options),
      layout_(options.size, options.staging_bytes, page_size()),
      crowded_(options.size > usable_processors()),
      failure_(failure) {
    if (options.size > kMostRanks)
        fail(DDP_ERROR_UNSUPPORTED, options.size, " ranks of one host; shared memory takes at most ", kMostRanks);
    const Deadline deadline = Deadline::after_ms(host.timeout_ms);
    if (options_.rank == 0)
        make_segment(host, deadline);
    else
        join_segment(host, deadline);
    arena_ = std::make_unique<Arena>(segment_, layout_.blocks(options_.rank), layout_.blocks(options_.rank + 1),
                                     state(options_.rank).freed, options_.size);
}

Team::~Team() {
    if (shared_) leave();
}

void Team::leave() {
    take_seat(-1);
    state(options_.rank).left.store(1);
    for (Counter* counter : {&shared_->arrivals, &shared_->barrier, &shared_->completed}) counter->wake_all();
}

void Team::make_segment(const ddp_backend_host& host, const Deadline& deadline) {
    backend::Keys keys(host, options_.prefix);
    segment_.reserve(0, layout_.control_bytes());
    map_control();
    const HandoffServer server(segment_.fd());
    // With the token in it: only ranks that the store lets in get the memory.
    keys.set("address", server.address());
    for (int rank = 1; rank < options_.size; ++rank) keys.get(str("attached/", rank), deadline);
}

void Team::join_segment(const ddp_backend_host& host, const Deadline& deadline) {
    backend::Keys keys(host, options_.prefix);
    segment_ = Segment(receive_descriptor(keys.get("address", deadline), deadline));
    map_control();
    keys.set(str("attached/", options_.rank), "1");
}

void Team::map_control() {
    control_ = segment_.map(0, layout_.control_bytes());
    const auto at = [this](std::uint64_t offset) { return control_.data() + offset; };
    shared_ = reinterpret_cast<Shared*>(at(0));
    for (int rank = 0; rank < options_.size; ++rank) {
        states_.push_back(reinterpret_cast<RankState*>(at(layout_.rank_state(rank))));
        for (std::uint32_t parity : {0u, 1u}) posts_.push_back(reinterpret_cast<Post*>(at(layout_.post(rank, parity))));
        for (int slot = 0; slot < Layout::kSlots; ++slot) staging_.push_back(at(layout_.staging(rank, slot)));
    }
}

// Once a collective, before it uses memory of others: a rank that gives up frees blocks that this rank may still read.
void Team::let_go_of_freed_blocks() {
    if (followed_ == sequence_) return;
    for (int rank = 0; rank < options_.size; ++rank) arena_->follow(rank, state(rank).freed);
    followed_ = sequence_;
}

std::byte* Team::reach(int rank, Location location, std::size_t bytes, std::size_t alignment) {
    let_go_of_freed_blocks();
    // Before the blocks lie the counters of the team, on which all of its loops depend.
    const bool in_block = location.block >= layout_.blocks(0);
    std::byte* memory = in_block ? arena_->reach(rank, location, bytes, alignment) : nullptr;
    if (memory) return memory;
    throw TeamError(ErrorInfo{DDP_ERROR_RANK_FAILED,
                              str("rank ", name_of(rank), " shares ", location.bytes, " bytes, of which ", bytes,
                                  " at ", location.within, " were to be used; its memory is damaged"),
                              rank});
}

void Team::post(const ddp_collective& c, std::size_t inline_bytes, Location send, Location recv) {
    ++sequence_;
    take_seat(this_processor());
    posted_ = true;
    Post& post = *posts_[static_cast<std::size_t>(2 * options_.rank) + (sequence_ & 1)];
    post.send = send;
    post.recv = recv;
    post.signature_bytes = c.signature_size;
    if (c.signature_size > 0) std::memcpy(post.signature, c.signature, c.signature_size);
    if (inline_bytes > 0) std::memcpy(post.data, c.send, inline_bytes);
    state(options_.rank).posted.store(sequence_, std::memory_order_relaxed);
    shared_->arrivals.add();
}

bool Team::all_here(std::int64_t patience_ns) {
    const std::uint32_t target = sequence_ * static_cast<std::uint32_t>(options_.size);
    return shared_->arrivals.reached(target) || spin(shared_->arrivals, target, crowded_ ? 0 : patience_ns);
}

void Team::meet(const ddp_collective& c) {
    wait(shared_->arrivals, sequence_ * static_cast<std::uint32_t>(options_.size), c);
    posted_ = false;
    compare_signatures(c);
}

void Team::compare_signatures(const ddp_collective& c) const {
    if (c.signature_size == 0) return;
    for (int other = 0; other < options_.size; ++other) {
        const Post& post = post_of(other);
        if (post.signature_bytes == c.signature_size && std::memcmp(post.signature, c.signature, c.signature_size) == 0)
            continue;
        std::memcpy(c.theirs, post.signature, c.signature_size);
        throw TeamError(ErrorInfo{
            DDP_ERROR_MISMATCH,
            str("rank ", name_of(other), " is about to do something else than rank ", name_of(options_.rank)), other});
    }
}

// Numbers of a collective in the upper half make the words of the last one void without anybody resetting them.
std::optional<std::uint32_t> Team::claim_part(std::uint32_t parts) {
    const std::uint64_t base = std::uint64_t{sequence_} << 32;
    std::uint64_t seen = shared_->claimed.load(std::memory_order_relaxed);
    for (;;) {
        const std::uint64_t next = seen >> 32 == sequence_ ? seen : base;
        const auto part = static_cast<std::uint32_t>(next);
        if (part >= parts) return std::nullopt;
        if (shared_->claimed.compare_exchange_weak(seen, next + 1, std::memory_order_relaxed)) return part;
    }
}

void Team::finish_part(std::uint32_t parts) {
    const std::uint64_t base = std::uint64_t{sequence_} << 32;
    std::uint64_t seen = shared_->done.load(std::memory_order_relaxed);
    std::uint64_t next;
    do {
        next = (seen >> 32 == sequence_ ? seen : base) + 1;
    } while (!shared_->done.compare_exchange_weak(seen, next, std::memory_order_acq_rel));
    if (static_cast<std::uint32_t>(next) == parts) shared_->completed.set(sequence_);
}

void Team::wait_for_parts(const ddp_collective& c) {
    wait(shared_->completed, sequence_, c);
}

void Team::barrier(const ddp_collective& c) {
    ++barriers_;
    shared_->barrier.add();
    wait(shared_->barrier, barriers_ * static_cast<std::uint32_t>(options_.size), c);
}

// True once the counter got there. Gives up early while another rank may need the processor that this one spins on.
bool Team::spin(const Counter& counter, std::uint32_t target, std::int64_t nanoseconds) {
    const auto reached = [&] { return counter.reached(target); };
    const auto in_the_way = [this] {
        take_seat(this_processor());
        return shared_->seats.shared(seat_);
    };
    return spin_until(std::chrono::nanoseconds(nanoseconds), reached, in_the_way);
}

void Team::take_seat(int processor) {
    if (processor == seat_) return;
    shared_->seats.move(seat_, processor);
    seat_ = processor;
}

void Team::wait(Counter& counter, std::uint32_t target, const ddp_collective& c) {
    if (counter.reached(target)) return;
    if (!crowded_) {
        if (spin(counter, target, kSpinNs)) return;
    } else {
        for (int i = 0; i < kYields; ++i) {
            sched_yield();
            if (counter.reached(target)) return;
        }
    }
    sleep(counter, target, c.timeout_ms);
}

void Team::sleep(Counter& counter, std::uint32_t target, std::int64_t timeout_ms) {
    const Deadline deadline = Deadline::after_ms(timeout_ms);
    while (!counter.reached(target)) {
        failure_.check();
        check_others(counter, target);
        if (deadline.expired()) throw TeamError(describe_timeout());
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "the program ended the wait");
        counter.sleep(target, std::min(kGlanceMs, std::max<std::int64_t>(1, deadline.remaining_ms())));
    }
}

ErrorInfo Team::describe_timeout() const {
    ErrorInfo info{DDP_ERROR_TIMEOUT, ""};
    for (int other = 0; other < options_.size; ++other) {
        if (state(other).posted.load() == sequence_) continue;
        if (info.rank < 0) info.rank = other;
        info.message += str(info.message.empty() ? "" : ", ", name_of(other));
    }
    info.message = info.message.empty()
                       ? "the collective did not finish before its timeout"
                       : "these ranks did not come to the collective before its timeout: " + info.message;
    return info;
}

void Team::confirm() const {
    failure_.check();
    // Pairs with the fence of give_up(): if a number that was read is younger than the failure, the flag is seen.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (shared_->broken.load()) fail(DDP_ERROR_RANK_FAILED, kGaveUp);
}

// A rank that left did so after its last collective: it is missed only if the counter still is not where it must be.
void Team::check_others(Counter& counter, std::uint32_t target) const {
    if (shared_->broken.load() && !counter.reached(target)) fail(DDP_ERROR_RANK_FAILED, kGaveUp);
    for (int other = 0; other < options_.size; ++other) {
        if (!state(other).left.load() || counter.reached(target)) continue;
        throw TeamError(ErrorInfo{DDP_ERROR_RANK_FAILED, str("rank ", name_of(other), " left the group"), other});
    }
}

void Team::give_up() {
    arena_->stop_reuse();
    shared_->broken.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (Counter* counter : {&shared_->arrivals, &shared_->barrier, &shared_->completed}) counter->wake_all();
}

// The failure may be another thread's, which has yet to tell the others.
void Team::check_failure() {
    if (!failure_.failed()) return;
    give_up();
    failure_.check();
}

}  // namespace libddp::shm
