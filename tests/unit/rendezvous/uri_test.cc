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

TEST(Uri, Etcd) {
    const EtcdAddress one = parse_store_uri("etcd://h:2379/job").etcd.value();
    EXPECT_EQ(one.endpoints.size(), 1u);
    EXPECT_EQ(one.name, "job");
    EXPECT_EQ(one.ttl_s, 5);
    EXPECT_FALSE(one.tls);
    const EtcdAddress all =
        parse_store_uri("etcds://a:1,[::1]:2,c:3/team/job?ttl=20&cacert=/ca&cert=/c&key=/k")
            .etcd.value();
    ASSERT_EQ(all.endpoints.size(), 3u);
    EXPECT_EQ(all.endpoints[1].host, "::1");
    EXPECT_EQ(all.endpoints[2].port, 3);
    EXPECT_EQ(all.name, "team/job");
    EXPECT_EQ(all.ttl_s, 20);
    EXPECT_TRUE(all.tls);
    EXPECT_EQ(all.cacert + all.cert + all.key, "/ca/c/k");
    EXPECT_TRUE(parse_store_uri("etcd://h:1/x?tls").etcd->tls);
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
        {"etcd://", "no host"},
        {"etcd://h/job", "no port"},
        {"etcd://h:1,/job", "no host"},
        {"etcd://h:0/job", "port 0"},
        {"etcd://h:1", "no name"},
        {"etcd://h:1/?ttl=1", "no name"},
        {"etcd://h:1/a//b", "empty part"},
        {"etcd://h:1/a/", "empty part"},
        {"etcd://h:1/a b", "printable"},
        {"etcd://h:1/a?ttl=0", "from 1 to 3600"},
        {"etcd://h:1/a?ttl=5s", "from 1 to 3600"},
        {"etcd://h:1/a?user=me", "there are ttl=SECONDS"},
        {"etcd://h:1/a?cacert=/ca", "etcds://"},
        {"etcds://h:1/a?cert=/c", "go together"},
        {"etcds://h:1/a?cacert=ca", "absolute"},
    };
    for (const auto& item : cases) {
        SCOPED_TRACE(item.uri);
        testing::expect_error(DDP_ERROR_INVALID_ARGUMENT, {"uri", item.says},
                              [&] { parse_store_uri(item.uri); });
    }
}

}  // namespace
}  // namespace libddp
