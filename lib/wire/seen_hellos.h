// The handshakes that a gate has begun: whoever sends a recording of one is found out before it
// costs anything.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <set>

namespace libddp::wire {

// The random numbers of clients that have used the key. Only those are kept, so that a stranger
// cannot push them out. A client never uses a number twice.
class SeenHellos {
public:
    using Random = std::array<unsigned char, 32>;
    // More than a large job makes connections within the time that it takes to join. About 2 MB.
    static constexpr std::size_t kMost = 16384;

    bool has(const Random& random) const { return seen_.count(random) > 0; }
    // Forgets the oldest one if there are too many.
    void add(const Random& random);

private:
    std::set<Random> seen_;
    std::deque<Random> order_;
};

}  // namespace libddp::wire
