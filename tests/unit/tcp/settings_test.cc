// The meaning of options, flags and the environment.
#include "backends/tcp/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "ddp/group.h"
#include "util/error.h"

namespace libddp {
namespace {

using tcp::Algorithm;
using ::testing::HasSubstr;
using wire::Protection;

tcp::Settings settings_for(const std::string& options, int world = 4, std::uint32_t flags = 0) {
    ddp_backend_host host{};
    host.options = options.c_str();
    host.world_size = world;
    host.flags = flags;
    return tcp::read_settings(host);
}

std::string complaint(const std::string& options, int world = 4, std::uint32_t flags = 0) {
    try {
        settings_for(options, world, flags);
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

TEST(TcpSettings, AutomaticAlgorithm) {
    EXPECT_EQ(settings_for("").algorithm, Algorithm::kDirect);
    EXPECT_EQ(settings_for("", 16).algorithm, Algorithm::kDirect);
    EXPECT_EQ(settings_for("", 17).algorithm, Algorithm::kRing);
    EXPECT_EQ(settings_for("algorithm=auto", 64, DDP_GROUP_DETERMINISTIC).algorithm,
              Algorithm::kDirect);
    EXPECT_EQ(settings_for("algorithm=ring").algorithm, Algorithm::kRing);
}

TEST(TcpSettings, Lanes) {
    EXPECT_EQ(settings_for("", 2).lanes, 1);
    EXPECT_EQ(settings_for("lanes=auto").lanes, 1);
    EXPECT_EQ(settings_for("lanes=5", 17).lanes, 5);
}

TEST(TcpSettings, Wire) {
    EXPECT_EQ(settings_for("").protection, Protection::kEncrypted);
    EXPECT_EQ(settings_for("wire=plain").protection, Protection::kPlain);
    setenv("DDP_WIRE", "plain", 1);
    EXPECT_EQ(settings_for("").protection, Protection::kPlain);
    EXPECT_EQ(settings_for("wire=encrypted").protection, Protection::kEncrypted);
    setenv("DDP_WIRE", "rot13", 1);
    EXPECT_THAT(complaint(""), HasSubstr("DDP_WIRE: wire 'rot13'"));
    unsetenv("DDP_WIRE");
}

TEST(TcpSettings, ComplaintsNameTheCulprit) {
    struct {
        const char *options, *words;
        int world = 4;
        std::uint32_t flags = 0;
    } const cases[] = {
        {"threads=2", "threads"}, {"algorithm=bcube", "bcube"},
        {"iface=", "iface"},      {"iface=lo,host=127.0.0.1", "host"},
        {"lanes=0", "lanes"},     {"lanes=9", "8"},
        {"wire=none", "none"},    {"algorithm=ring", "ring", 3, DDP_GROUP_DETERMINISTIC},
    };
    for (const auto& c : cases)
        EXPECT_THAT(complaint(c.options, c.world, c.flags), HasSubstr(c.words)) << c.options;
}

}  // namespace
}  // namespace libddp
