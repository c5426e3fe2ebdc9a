// The team of lib/backends/shm as the model checker sees it: the library's functions over memory of
// this program. A wait is one look at the counter, in executions where it is there.
//
// with lib/backends/shm/team.cc: std::optional<std::uint32_t> Team::claim_part => MaybePart Team::claim_part
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>

#include "backends/shm/counter.h"
#include "checker.h"
#include "ddp/backend.h"

// The checker needs accesses of one size, and calls no functions of the system.
namespace std {

inline void copy_bytes(void* to, const void* from, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
        static_cast<byte*>(to)[i] = static_cast<const byte*>(from)[i];
}
inline int compare_bytes(const void* one, const void* other, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
        if (static_cast<const byte*>(one)[i] != static_cast<const byte*>(other)[i]) return 1;
    return 0;
}

}  // namespace std
#define memcpy copy_bytes
#define memcmp compare_bytes

namespace libddp::shm {

// An error. The thread that throws it ends.
struct ErrorInfo {
    int code;
    int text;
    int rank;
};
struct TeamError {
    explicit TeamError(const ErrorInfo&) {}
};
struct Thrown {
    template <class Error>
    void operator=(const Error&) {
        __VERIFIER_thread_exit(nullptr);
    }
};
template <class... Parts>
int str(const Parts&...) {
    return 0;
}
template <class... Parts>
void fail(int, const Parts&...) {
    __VERIFIER_thread_exit(nullptr);
}
#define throw Thrown{} =

inline constexpr char kGaveUp[] = "";
constexpr std::size_t kInlineBytes = 1;
constexpr std::size_t kSignatureBytes = 1;

inline int this_processor() {
    return 0;
}

// An std::optional goes through a register as one number of its size, and the checker allows a
// place only accesses of one size.
class MaybePart {
public:
    MaybePart(std::nullopt_t) {}
    MaybePart(std::uint32_t part) : some_(true), part_(part) {}
    MaybePart(const MaybePart& other) : some_(other.some_), part_(other.part_) {}
    explicit operator bool() const { return some_; }
    std::uint32_t operator*() const { return part_; }

private:
    bool some_ = false;
    std::uint32_t part_ = 0;
};

// The library's, but copied number by number, for the same reason.
struct Location {
    std::uint64_t block, bytes, within;
    Location& operator=(const Location& other) {
        block = other.block;
        bytes = other.bytes;
        within = other.within;
        return *this;
    }
};
// from lib/backends/shm/arena.h: FreedBlocks
// from lib/backends/shm/control.h: Seats
// from lib/backends/shm/control.h: Shared
// from lib/backends/shm/control.h: RankState
// from lib/backends/shm/control.h: Post

constexpr int kMostRanks = 3;
inline Shared segment;
inline RankState states[kMostRanks];
inline Post posts[kMostRanks][2];

struct TeamOptions {
    int rank, size;
    int name_of(int other) const { return other; }
};

struct Control {
    Shared& shared() const { return segment; }
    RankState& state(int rank) const { return states[rank]; }
    Post& post(int rank, std::uint32_t parity) const { return posts[rank][parity]; }
    void wake_all() const {}
};

struct NoFailure {
    void check() const {}
};

struct NoArena {
    void stop_reuse() {}
};

class Patience {
public:
    Patience(const TeamOptions& options, const Control& control)
        : options_(options), control_(control) {}

    void take_seat(int) {}
    void wait(Counter& counter, std::uint32_t target, std::int64_t) {
        model::wait_until(counter.reached(target));
    }
    void check_others(const Counter& counter, std::uint32_t target) const;

private:
    const TeamOptions& options_;
    const Control& control_;
};

// from lib/backends/shm/patience.cc: Patience::check_others

class Team {
public:
    Team(int rank, int size) : options_{rank, size} {}

    void post(const ddp_collective& c, std::size_t inline_bytes, Location send, Location recv);
    void meet(const ddp_collective& c);
    // from lib/backends/shm/team.h: post_of
    MaybePart claim_part(std::uint32_t parts);
    void finish_part(std::uint32_t parts);
    void wait_for_parts(const ddp_collective& c);
    void barrier(const ddp_collective& c);
    void confirm() const;
    void give_up();
    void leave();
    const Patience& patience() const { return patience_; }

private:
    // from lib/backends/shm/team.h: from_all
    void compare_signatures(const ddp_collective& c) const;
    void gather_carried(std::uint64_t*) const {}

    const TeamOptions options_;
    NoFailure failure_;
    Control control_;
    NoArena arena_;
    Patience patience_{options_, control_};
    std::uint32_t sequence_ = 0;
    std::uint32_t barriers_ = 0;
    bool posted_ = false;
};

// from lib/backends/shm/team.cc: Team::post
// from lib/backends/shm/team.cc: Team::meet
// from lib/backends/shm/team.cc: Team::compare_signatures
// from lib/backends/shm/team.cc: Team::claim_part
// from lib/backends/shm/team.cc: Team::finish_part
// from lib/backends/shm/team.cc: Team::wait_for_parts
// from lib/backends/shm/team.cc: Team::barrier
// from lib/backends/shm/team.cc: Team::confirm
// from lib/backends/shm/team.cc: Team::give_up
// from lib/backends/shm/team.cc: Team::leave

}  // namespace libddp::shm
