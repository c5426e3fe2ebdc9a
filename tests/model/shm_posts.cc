// Each rank reads from the posts of all others what they have posted for this collective, and none
// overwrites a post that another rank may still read.
//
// also kRanks = 2, kCollectives = 3 => kRanks = 3, kCollectives = 2
// weaken lib/backends/shm/counter.h: value_.fetch_add(amount) => value_.fetch_add(amount, std::memory_order_relaxed)
// weaken lib/backends/shm/counter.h: value_.fetch_add(amount) => value_.fetch_add(amount, std::memory_order_acquire)
// weaken lib/backends/shm/counter.h: value_.load(std::memory_order_acquire) => value_.load(std::memory_order_relaxed)
// weaken lib/backends/shm/team.h: control_.post(rank, sequence_ & 1) => control_.post(rank, 0)
// weaken lib/backends/shm/team.cc: control_.post(options_.rank, sequence_ & 1) => control_.post(options_.rank, 0)
#include "team.h"

namespace libddp::shm {

void Counter::wake_all() {}

namespace {

constexpr int kRanks = 2, kCollectives = 3;

ddp_collective collectives[kRanks];

void* take_part(void* argument) {
    const int rank = model::number_of(argument);
    Team team(rank, kRanks);
    for (int collective = 1; collective <= kCollectives; ++collective) {
        const std::byte data{static_cast<unsigned char>(16 * collective + rank)};
        const auto number = static_cast<std::uint64_t>(collective);
        ddp_collective& c = collectives[rank];
        c.send = &data;
        team.post(c, sizeof data, {number, 1, static_cast<std::uint64_t>(rank)}, {0, 0, 0});
        team.meet(c);
        for (int other = 0; other < kRanks; ++other) {
            const Post& post = team.post_of(other);
            ALWAYS(post.send.block == number);
            ALWAYS(post.data[0] == std::byte{static_cast<unsigned char>(16 * collective + other)});
        }
    }
    return nullptr;
}

}  // namespace
}  // namespace libddp::shm

int main() {
    using namespace libddp;
    for (int rank = 0; rank < shm::kRanks; ++rank)
        model::start(shm::take_part, static_cast<std::size_t>(rank));
    return 0;
}
