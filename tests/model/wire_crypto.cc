// When end() has returned, no thread is inside of OpenSSL, and none enters it any more.
//
// with lib/wire/crypto.cc: std::this_thread::sleep_for(std::chrono::microseconds(20)); => model::wait_until(entered.load() == 0);
// with lib/wire/crypto.cc: static const bool is_set_up => const bool is_set_up
// also kThreads = 2 => kThreads = 1
// weaken lib/wire/crypto.cc: ended.store(true) => ended.store(true, std::memory_order_release)
// weaken lib/wire/crypto.cc: while (entered.load() != 0) => while (entered.load(std::memory_order_acquire) != 0)
// weaken lib/wire/crypto.cc: entered.fetch_add(1); => entered.fetch_add(1, std::memory_order_acq_rel);
// weaken lib/wire/crypto.cc: if (!ended.load()) => if (!ended.load(std::memory_order_acquire))
// weaken lib/wire/crypto.cc: if (alive_) entered.fetch_sub(1); => if (alive_) entered.fetch_sub(1, std::memory_order_relaxed);
#include <atomic>

#include "checker.h"

namespace libddp::wire {
namespace {

constexpr int kThreads = 2;

std::atomic<int> entered{0};
std::atomic<bool> ended{false};
bool alive[kThreads];  // OpenSSL's, for each thread

bool set_up() {
    return true;
}

// from lib/wire/crypto.cc: end
// from lib/wire/crypto.cc: enter

class Cryptography {
public:
    Cryptography();
    ~Cryptography();
    const bool alive_;
};

}  // namespace

// from lib/wire/crypto.cc: Cryptography::Cryptography
// from lib/wire/crypto.cc: Cryptography::~Cryptography

namespace {

void* use(void* argument) {
    const Cryptography guard;
    if (guard.alive_) ALWAYS(alive[model::number_of(argument)]);
    return nullptr;
}

void* exit(void*) {
    end();
    for (bool& one : alive) one = false;
    return nullptr;
}

}  // namespace
}  // namespace libddp::wire

int main() {
    using namespace libddp;
    for (bool& one : wire::alive) one = true;
    for (int thread = 0; thread < wire::kThreads; ++thread)
        model::start(wire::use, static_cast<std::size_t>(thread));
    model::start(wire::exit, 0);
    return 0;
}
