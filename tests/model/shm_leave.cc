// A rank that leaves, or gives up, after it has come to a barrier is not missed there by the rank
// that waits in it.
//
// weaken lib/backends/shm/team.cc: left.store(1) => left.store(1, std::memory_order_relaxed)
// weaken lib/backends/shm/patience.cc: left.load() => left.load(std::memory_order_relaxed)
// weaken lib/backends/shm/team.cc: broken.store(1) => broken.store(1, std::memory_order_relaxed)
// weaken lib/backends/shm/patience.cc: if (control_.shared().broken.load() && => if (control_.shared().broken.load(std::memory_order_relaxed) &&
#include "team.h"

namespace libddp::shm {

void Counter::wake_all() {}

namespace {

constexpr int kRanks = 3;

const ddp_collective c{};
bool came_through = false;

void* leave(void*) {
    Team team(0, kRanks);
    team.barrier(c);
    team.leave();
    return nullptr;
}

void* give_up(void*) {
    Team team(1, kRanks);
    team.barrier(c);
    team.give_up();
    return nullptr;
}

void* wait(void*) {
    Team team(2, kRanks);
    segment.barrier.add();
    team.patience().check_others(segment.barrier, kRanks);
    came_through = true;
    return nullptr;
}

}  // namespace
}  // namespace libddp::shm

int main() {
    using namespace libddp;
    model::start(shm::leave, 0);
    model::start(shm::give_up, 0);
    model::join(model::start(shm::wait, 0));
    ALWAYS(shm::came_through);
    return 0;
}
