// Threads that come at once get the same object, and each sees it as its constructor left it.
//
// with lib/util/process.h: std::make_unique<Node>() => std::unique_ptr<Node>(new Node)
// also kThreads = 2 => kThreads = 3
// weaken lib/util/process.h: node_.load(std::memory_order_acquire); if (node && => node_.load(std::memory_order_relaxed); if (node &&
// weaken lib/util/process.h: fresh.get(), std::memory_order_acq_rel => fresh.get(), std::memory_order_acquire
// weaken lib/util/process.h: fresh.get(), std::memory_order_acq_rel => fresh.get(), std::memory_order_release, std::memory_order_relaxed
#include "checker.h"
#include "util/process.h"

std::atomic<std::uint32_t> libddp::detail::forks{0};
void libddp::detail::count_forks() {}

namespace libddp {
namespace {

constexpr int kThreads = 2;

struct Object {
    int value = 1;
};

OnePerProcess<Object> objects;
Object* got[kThreads];

void* get(void* argument) {
    Object& object = objects.get();
    ALWAYS(object.value == 1);
    got[model::number_of(argument)] = &object;
    return nullptr;
}

}  // namespace
}  // namespace libddp

int main() {
    using namespace libddp;
    long threads[kThreads];
    for (int thread = 0; thread < kThreads; ++thread)
        threads[thread] = model::start(get, static_cast<std::size_t>(thread));
    for (const long thread : threads) model::join(thread);
    for (const Object* one : got) ALWAYS(one == got[0]);
    objects.destroy();
    return 0;
}
