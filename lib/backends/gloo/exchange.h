// Small fixed messages between all ranks: comparing signatures, and barriers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backends/gloo/mesh.h"

namespace libddp::gloo_tcp {

// Every rank tells every other what it is about to do. Up to 16 ranks each sends to all the others:
// one message of latency. Beyond, log2(world) rounds of one message each (a dissemination barrier),
// in which a difference travels with the messages. Either way a rank that gets through knows that
// all ranks agree, so the following collective may have any pattern.
class Exchange {
public:
    static constexpr std::size_t kMaxBytes = 128;

    struct Difference {
        int rank;
        std::array<char, kMaxBytes> bytes;
    };

    explicit Exchange(Mesh& mesh);
    ~Exchange();

    // Returns the difference if some rank brings other bytes. Throws Error TIMEOUT naming the ranks
    // that did not come, or whatever Gloo throws when a connection breaks.
    std::optional<Difference> compare(const void* bytes, std::size_t size,
                                      const Deadline& deadline);

private:
    struct Signature {
        std::uint32_t size;
        char bytes[kMaxBytes];
        bool operator==(const Signature& other) const;
    };
    // On the wire. All ranks of a group run the same version of libddp on the same byte order
    // (ddp_group_create checks).
    struct Frame {
        Signature own;         // of the sender
        std::int32_t culprit;  // a rank whose signature is not the sender's, or -1
        Signature culprits;
    };
    struct Partner {
        int to;
        int from;
        std::uint64_t tag;
        Frame incoming;
        BufferPtr receive;
        bool posted;
    };

    void post(Partner& partner);
    void run_round(std::vector<Partner>& round, const Deadline& deadline);
    void absorb(const Partner& partner);
    // silent: the ranks that sent nothing, of those before `rest` in the round.
    [[noreturn]] void report_missing(std::vector<Partner>& round, std::size_t rest,
                                     std::vector<int> silent);

    Mesh& mesh_;
    std::vector<std::vector<Partner>> rounds_;
    // One message for all partners of a round. A frame stays untouched until its sends are
    // complete.
    std::vector<Frame> outgoing_;
    std::vector<BufferPtr> send_;
    Frame state_;
};

}  // namespace libddp::gloo_tcp
