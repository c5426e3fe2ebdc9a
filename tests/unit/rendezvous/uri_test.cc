#include "rendezvous/uri.h"

#include "support.h"

namespace libddp {
namespace {

TEST(Uri, Tcp) {
    StoreUri uri = parse_store_uri("tcp://node-1.cluster:29500");
    EXPECT_FALSE(uri.is_file);
    EXPECT_EQ(uri.host, "node-1.cluster");
    EXPECT_EQ(uri.port, 29500);
    EXPECT_EQ(parse_store_uri("tcp://127.0.0.1:0").port, 0);
    EXPECT_EQ(parse_store_uri("tcp://h:65535").port, 65535);
}

TEST(Uri, TcpWithBrackets) {
    StoreUri uri = parse_store_uri("tcp://[fe80::1]:80");
    EXPECT_EQ(uri.host, "fe80::1");
    EXPECT_EQ(uri.port, 80);
    EXPECT_EQ(tcp_uri("fe80::1", 80), "tcp://[fe80::1]:80");
    EXPECT_EQ(tcp_uri("host", 80), "tcp://host:80");
}

TEST(Uri, File) {
    StoreUri uri = parse_store_uri("file:///tmp/a b");
    EXPECT_TRUE(uri.is_file);
    EXPECT_EQ(uri.path, "/tmp/a b");
}

TEST(Uri, EveryMistakeIsNamed) {
    const struct {
        const char* uri;
        const char* says;
    } cases[] = {
        {"", "is empty"},
        {"http://h:1", "no known kind"},
        {"tcp:/h:1", "no known kind"},
        {"tcp://", "no host"},
        {"tcp://:1", "no host"},
        {"tcp://[]:1", "no host"},
        {"tcp://h", "no port"},
        {"tcp://h:", "no port"},
        {"tcp://[::1]", "no port"},
        {"tcp://[::1:1", "without ']'"},
        {"tcp://[::1]x", "where ':port' should be"},
        {"tcp://::1:1", "more than one ':'"},
        {"tcp://h:65536", "above 65535"},
        {"tcp://h:99999999999999999999", "above 65535"},
        {"tcp://h:-1", "not a number"},
        {"tcp://h:1/x", "not a number"},
        {"tcp://h: 1", "not a number"},
        {"file://", "no path"},
        {"file://relative/path", "relative path"},
        {"file:///folder/", "folder"},
    };
    for (const auto& item : cases) {
        SCOPED_TRACE(item.uri);
        testing::expect_error(DDP_ERROR_INVALID_ARGUMENT, {"uri", item.says}, [&] { parse_store_uri(item.uri); });
    }
}

}  // namespace
}  // namespace libddp
