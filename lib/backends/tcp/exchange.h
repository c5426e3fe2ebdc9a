// Ranks tell each other what they are about to do, and compare.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "backends/tcp/mesh.h"

namespace libddp::tcp {

// In a full mesh every rank tells every other: one message of latency, which travels together with
// data. Otherwise log2(world) rounds of one message each (a dissemination barrier), in which a
// difference travels with the messages. Either way a rank that gets through knows that all ranks
// agree.
class Exchange {
public:
    explicit Exchange(Mesh& mesh) : mesh_(mesh) {}

    // Begins an operation. Sends what this rank is about to do to those that it tells directly, and
    // expects theirs: in each lane 0 before all other messages of the operation. `c` must live
    // until finish() returns.
    void begin(const ddp_collective& c, const Deadline& deadline);
    // Waits for them. Throws Error MISMATCH with the rank that differs, TIMEOUT with the ranks that
    // do not come.
    void finish();
    void compare(const ddp_collective& c, const Deadline& deadline) {
        begin(c, deadline);
        finish();
        mesh_.wait_sent(deadline);
    }

private:
    static constexpr std::size_t kMaxSignature = 128;
    // On the wire. All ranks of a group run the same version of libddp on the same byte order
    // (ddp_group_create checks).
    struct Opening {
        std::int32_t kind, dtype, op, root;
        std::uint64_t count;
        std::uint64_t parts;  // a hash of their sizes
        std::uint64_t signature_size;
        char signature[kMaxSignature];
        std::uint64_t carried[2];  // ranks do not compare it
        bool operator==(const Opening& other) const;
    };
    struct Difference {
        Opening opening;
        std::int32_t rank = -1;  // whose it is; -1: none is known
        std::int32_t reserved = 0;
    };
    // The header of a message in a round.
    struct Frame {
        Opening own;  // of the sender
        Difference difference;
    };
    struct Incoming {
        int peer;
        int missing;
        Opening opening;
    };

    bool all_here();
    void run_rounds();
    void note(int rank, const Opening& opening);
    void gather_carried(const Opening& opening);
    [[noreturn]] void disagree();

    Mesh& mesh_;
    const ddp_collective* c_ = nullptr;
    Deadline deadline_ = Deadline::after_ms(0);
    Opening own_{};
    std::uint64_t carried_[2]{};  // of the ranks that this one has heard of
    Difference difference_;
    std::deque<Frame> outgoing_;
    std::vector<Incoming> incoming_;
};

}  // namespace libddp::tcp
