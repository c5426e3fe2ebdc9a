// A rank whose program writes to its memory after it has given up: another rank that reads what was
// written learns from confirm() that the rank has given up.
//
// weaken lib/backends/shm/team.cc: std::atomic_thread_fence(std::memory_order_acquire); => nothing
// weaken lib/backends/shm/team.cc: std::atomic_thread_fence(std::memory_order_seq_cst); => nothing
#include "team.h"

namespace libddp::shm {

void Counter::wake_all() {}

namespace {

// Both sides use no atomic accesses: the operation has failed on one of them.
std::atomic<int> memory{0};

void* give_up(void*) {
    Team(0, 2).give_up();
    memory.store(1, std::memory_order_relaxed);
    return nullptr;
}

void* read(void*) {
    const Team team(1, 2);
    const int seen = memory.load(std::memory_order_relaxed);
    team.confirm();
    ALWAYS(seen == 0);
    return nullptr;
}

}  // namespace
}  // namespace libddp::shm

int main() {
    using namespace libddp;
    model::start(shm::give_up, 0);
    model::start(shm::read, 0);
    return 0;
}
