#include <gtest/gtest.h>
TEST(Empty, Empty) {}
