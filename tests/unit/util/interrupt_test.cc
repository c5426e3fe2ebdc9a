// The check of the program: whose data it is, and which thread is asked.
#include "util/interrupt.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <thread>

// The sanitizers have definitions of their own.
#ifndef DDP_SANITIZED
namespace {

thread_local bool no_memory = false;

}  // namespace

void* operator new(std::size_t size) {
    void* memory = no_memory ? nullptr : std::malloc(size > 0 ? size : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}
// Not inline, where GCC would see `free` beside `new` and warn.
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
#endif

namespace libddp {
namespace {

std::int32_t yes(void*) {
    return 1;
}

void count(void* destroyed) {
    ++*static_cast<int*>(destroyed);
}

void install_none() {
    interrupt::install(nullptr, nullptr, nullptr, false);
}

// As a wait does that lasts for a while.
bool is_asked() {
    for (int i = 0; i < 10; ++i) {
        if (interrupt::wanted()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    return false;
}

#ifndef DDP_SANITIZED
TEST(Interrupt, DataStaysTheCallersIfThereIsNoMemoryForTheCheck) {
    int destroyed = 0;
    bool failed = false;
    no_memory = true;
    try {
        interrupt::install(&yes, &destroyed, &count, false);
    } catch (const std::bad_alloc&) {
        failed = true;
    }
    no_memory = false;
    EXPECT_TRUE(failed);
    EXPECT_EQ(destroyed, 0);
    EXPECT_FALSE(is_asked());
}
#endif

TEST(Interrupt, DataIsDestroyedOnce) {
    int destroyed = 0;
    interrupt::install(&yes, &destroyed, &count, false);
    EXPECT_EQ(destroyed, 0);
    interrupt::install(nullptr, &destroyed, &count, false);
    EXPECT_EQ(destroyed, 2) << "of the check before, and of none";
}

TEST(Interrupt, OneThreadOrAll) {
    bool other = true;
    interrupt::install(&yes, nullptr, nullptr, true);
    std::thread([&] { other = is_asked(); }).join();
    EXPECT_FALSE(other);
    EXPECT_TRUE(is_asked());
    interrupt::install(&yes, nullptr, nullptr, false);
    std::thread([&] { other = is_asked(); }).join();
    EXPECT_TRUE(other);
    install_none();
    EXPECT_FALSE(is_asked());
}

}  // namespace
}  // namespace libddp
