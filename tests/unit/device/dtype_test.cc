#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include "kernels/arithmetic.h"

namespace libddp {
namespace {

TEST(Dtype, SizesAndNames) {
    EXPECT_EQ(dtype_size(DDP_F16), 2u);
    EXPECT_EQ(dtype_size(DDP_BF16), 2u);
    EXPECT_EQ(dtype_size(DDP_F32), 4u);
    EXPECT_EQ(dtype_size(DDP_F64), 8u);
    EXPECT_EQ(dtype_size(DDP_I32), 4u);
    EXPECT_EQ(dtype_size(DDP_I64), 8u);
    EXPECT_EQ(dtype_size(DDP_U8), 1u);
    EXPECT_EQ(dtype_size(DDP_C64), 8u);
    EXPECT_EQ(dtype_size(DDP_C128), 16u);
    EXPECT_STREQ(dtype_name(DDP_BF16), "bf16");
}

TEST(Dtype, UnknownHasNoSize) {
    for (ddp_dtype unknown : {-1, 0, 10, 1000}) {
        EXPECT_EQ(dtype_size(unknown), 0u);
        EXPECT_STREQ(dtype_name(unknown), "unknown");
        EXPECT_FALSE(cpu::can_reduce(unknown, DDP_SUM));
    }
}

TEST(Dtype, WhatCanBeReduced) {
    for (ddp_dtype dtype = DDP_F16; dtype <= DDP_C128; ++dtype) {
        EXPECT_TRUE(cpu::can_reduce(dtype, DDP_SUM));
        EXPECT_TRUE(cpu::can_reduce(dtype, DDP_PROD));
        EXPECT_EQ(cpu::can_reduce(dtype, DDP_MIN), !is_complex(dtype));
        EXPECT_EQ(cpu::can_reduce(dtype, DDP_MAX), !is_complex(dtype));
        EXPECT_FALSE(cpu::can_reduce(dtype, DDP_AVG));
        EXPECT_FALSE(cpu::can_reduce(dtype, 0));
    }
}

}  // namespace
}  // namespace libddp
