#include "util/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "util/error.h"

namespace libddp {
namespace {

using ::testing::HasSubstr;

std::string complaint(const char* value) {
    try {
        parse_ports(value);
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

TEST(Ports, ARangeHasBothOfItsEnds) {
    const auto range = parse_ports("20000-20099");
    ASSERT_TRUE(range);
    EXPECT_EQ(range->first, 20000);
    EXPECT_EQ(range->last, 20099);
    EXPECT_EQ(range->text(), "DDP_PORTS=20000-20099");
    EXPECT_EQ(parse_ports("7-7")->last, 7);
    EXPECT_EQ(parse_ports("1-65535")->last, 65535);
    EXPECT_FALSE(parse_ports(""));
}

TEST(Ports, MistakesAreNamed) {
    const struct {
        const char *value, *words;
    } cases[] = {
        {"20000", "'20000' is not FIRST-LAST, such as 20000-20099"},
        {"-", "'' is not an integer"},
        {"20000-", "'' is not an integer"},
        {"20000-20010,20020-20030", "'20010,20020-20030' is not an integer"},
        {"a-b", "'a' is not an integer"},
        {" 1-2", "' 1' is not an integer"},
        {"0-10", "0 is not between 1 and 65535"},
        {"10-65536", "65536 is not between 1 and 65535"},
        {"20099-20000", "in 20099-20000 the first port is above the last"},
    };
    for (const auto& c : cases) {
        EXPECT_THAT(complaint(c.value), HasSubstr(c.words)) << c.value;
        EXPECT_THAT(complaint(c.value), HasSubstr("DDP_PORTS")) << c.value;
    }
}

}  // namespace
}  // namespace libddp
