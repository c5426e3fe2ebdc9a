// Runs the tests, or says in one line why they cannot run here, which ctest counts as skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "gpu/gpu.h"

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    if (const std::string why = libddp::testing_gpu::why_skip(); !why.empty()) {
        std::printf("skipped: %s\n", why.c_str());
        return 0;
    }
    return RUN_ALL_TESTS();
}
