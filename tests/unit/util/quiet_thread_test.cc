#include "util/quiet_thread.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace libddp {
namespace {

TEST(QuietThread, AnExceptionDoesNotEndTheProcess) {
    bool begun = false;
    quiet_thread([&] {
        begun = true;
        throw std::bad_alloc();
    }).join();
    quiet_thread([] { throw 1; }).join();
    EXPECT_TRUE(begun);
}

TEST(QuietThread, PersistsUntilItsLoopReturns) {
    int tries = 0;
    quiet_thread([&] {
        persist("the test", [&] {
            if (++tries < 3) throw std::bad_alloc();
        });
    }).join();
    EXPECT_EQ(tries, 3);
}

}  // namespace
}  // namespace libddp
