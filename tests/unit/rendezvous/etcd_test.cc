// Particulars of the store on etcd: servers that die, TLS, users, and keys that are left in etcd.
// Skipped without etcd.
#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "etcd_server.h"
#include "rendezvous/etcd/client.h"
#include "support.h"
#include "support/slack.h"
#include "util/deadline.h"

namespace libddp::testing {
namespace {

class Etcd : public ::testing::Test {
protected:
    void SetUp() override {
        if (!has_etcd()) GTEST_SKIP() << "no etcd";
    }
};

// The keys of libddp that the cluster holds.
std::string keys_of(const EtcdCluster& cluster) {
    std::string keys;
    EXPECT_EQ(run_program({"etcdctl", "--endpoints", cluster.endpoints(), "get", "--prefix",
                           "/ddp/", "--keys-only"},
                          &keys),
              0);
    return keys;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

TEST_F(Etcd, AFenceOutlivesTheContentsAndItsParticipants) {
    const EtcdCluster cluster(1);
    const std::string uri = cluster.uri();
    open(uri)->raise_fence(5);
    EXPECT_EQ(count(keys_of(cluster), "/ddp/"), 1U);
    auto store = open(uri);
    EXPECT_TRUE(store->list_keys("").empty());
    EXPECT_EQ(store->raise_fence(0), 5);
}

// Adds in two threads while `happens` runs; nothing may be lost or counted twice.
void expect_exact_sums(const std::string& uri, const std::function<void()>& happens) {
    auto a = open(uri);
    auto b = open(uri);
    auto waiting = std::async(std::launch::async, [&] { return b->get("at the end", 60'000); });
    std::atomic<bool> go_on{true};
    std::atomic<std::int64_t> added{0};
    auto add = [&](Store& store) {
        std::int64_t count = 0;
        for (; go_on; ++count) {
            store.add("sum", 1);
            store.set(str("text/", &store == a.get() ? "a" : "b", count), "x");
            ++added;
        }
        return count;
    };
    auto first = std::async(std::launch::async, [&] { return add(*a); });
    auto second = std::async(std::launch::async, [&] { return add(*b); });
    // Whatever fails, the threads above end before their futures wait for them.
    struct AtEnd {
        std::atomic<bool>& go_on;
        Store &a, &b;
        ~AtEnd() {
            go_on = false;
            a.close();
            b.close();
        }
    } at_end{go_on, *a, *b};
    const auto wait_for_more = [&] {
        const std::int64_t wanted = added + 6;
        for (const auto bound = Deadline::after_ms(with_slack(30'000));
             added < wanted && !bound.expired();)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    wait_for_more();
    happens();
    wait_for_more();
    go_on = false;
    const std::int64_t sum = first.get() + second.get();
    EXPECT_GT(sum, 10);
    EXPECT_EQ(a->get("sum"), std::to_string(sum));
    EXPECT_EQ(b->list_keys("text/").size(), static_cast<std::size_t>(sum));
    a->set("at the end", "here");
    EXPECT_EQ(waiting.get(), "here");
}

TEST_F(Etcd, AClusterOutlivesItsLeader) {
    EtcdCluster cluster(3);
    expect_exact_sums(cluster.uri(2), [&] {
        cluster.kill(cluster.leader());
        std::this_thread::sleep_for(std::chrono::seconds(2));
    });
}

TEST_F(Etcd, AServerThatStandsStillIsLeft) {
    EtcdCluster cluster(3);
    const std::string uri = cluster.uri(2);
    expect_exact_sums(uri, [&] {
        cluster.stop_running(0);  // which all use
        auto other = open(uri);   // knocks there first
        other->set("k", "v");
        std::this_thread::sleep_for(std::chrono::seconds(1));
    });
}

TEST_F(Etcd, EndpointsThatAreSilentCostNoLease) {
    EtcdCluster silent(1);
    EtcdCluster cluster(1);
    silent.stop_running(0);
    std::string endpoints;
    for (int i = 0; i < 4; ++i) endpoints += silent.endpoints() + ",";
    auto store = open(str("etcd://", endpoints, cluster.endpoints(), "/test/silent?ttl=4"));
    for (int i = 0; i < 13; ++i) {
        store->set("k", std::to_string(i));
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    EXPECT_EQ(store->get("k"), "12");
}

TEST_F(Etcd, WithoutServersTheStoreIsLost) {
    EtcdCluster cluster(1);
    auto store = open(cluster.uri());
    std::promise<std::string> lost;
    store->watch_connection([&](const std::string& reason, bool) { lost.set_value(reason); });
    auto waiting = std::async(std::launch::async,
                              [&] { return error_of([&] { store->get("never", 60'000); }).code; });
    cluster.kill(0);
    auto reason = lost.get_future();
    ASSERT_EQ(reason.wait_for(std::chrono::milliseconds(kLongMs)), std::future_status::ready);
    EXPECT_NE(reason.get().find(cluster.endpoints()), std::string::npos);
    EXPECT_EQ(waiting.get(), DDP_ERROR_UNAVAILABLE);
    expect_error(DDP_ERROR_UNAVAILABLE, {"etcd://"}, [&] { store->set("k", "v"); });
    expect_error(DDP_ERROR_UNAVAILABLE, {"Check that etcd runs"}, [&] { store->reconnect(300); });
}

TEST_F(Etcd, HistoryThatEtcdHasDroppedIsNotMissed) {
    EtcdCluster cluster(3);
    const std::string uri = cluster.uri(2);
    auto a = open(uri);
    auto b = open(uri);
    a->set("k", "v");
    EXPECT_EQ(b->get("k"), "v");
    for (int i = 0; i < 5; ++i)
        ASSERT_TRUE(cluster.control({"put", "somebody else's", std::to_string(i)}));
    EtcdClient client(parse_store_uri(uri).etcd.value(), uri);
    const std::int64_t revision =
        client.read({"k", ""}, 0, 0, Deadline::after_ms(kLongMs)).revision;
    ASSERT_TRUE(cluster.control({"compaction", std::to_string(revision)}));
    cluster.kill(0);
    a->set("later", "seen");
    EXPECT_EQ(b->get("later", kLongMs), "seen");
    EXPECT_EQ(b->get("k"), "v");
}

TEST_F(Etcd, TheLastOneLeavesNothing) {
    EtcdCluster cluster(1);
    const std::string uri = cluster.uri();
    auto a = open(uri);
    auto b = open(uri);
    a->set("k", "v");
    a.reset();
    EXPECT_EQ(b->get("k"), "v");
    EXPECT_NE(keys_of(cluster), "");
    b.reset();
    EXPECT_EQ(keys_of(cluster), "");
}

TEST_F(Etcd, WhatADeadJobHasLeftIsRemoved) {
    EtcdCluster cluster(1);
    const std::string uri = cluster.uri();
    Child child({uri, "add"});
    EXPECT_EQ(child.read_line(), "ready");
    EXPECT_EQ(open(uri)->get("children"), "1");
    child.kill();
    EXPECT_TRUE(eventually([&] { return count(keys_of(cluster), "/w/alive/") == 0; }));
    EXPECT_NE(keys_of(cluster), "");
    auto store = open(uri);
    EXPECT_TRUE(store->list_keys("").empty());
}

TEST_F(Etcd, AProcessThatStandsStillCountsAsDead) {
    EtcdCluster cluster(1);
    const std::string uri = cluster.uri();
    auto store = open(uri);
    Child child({uri, "will"});
    EXPECT_EQ(child.read_line(), "ready");
    child.stop_running();
    EXPECT_EQ(store->get("will/executed", kLongMs), "gone");
}

TEST_F(Etcd, LongLogsBecomeSnapshots) {
    EtcdCluster cluster(1);
    const std::string uri = cluster.uri(20);
    auto a = open(uri);
    auto b = open(uri);
    b->set_will("left", "yes");
    a->set("early", "kept");
    a->add("sum", 7);
    const std::string large(std::size_t{1} << 20, 'v');
    a->set("large", large);
    // A megabyte at a time would take long where processors are busy.
    const std::string value(std::size_t{256} << 10, 'w');
    for (int i = 0; i < 52; ++i) a->set("value", value);
    EXPECT_TRUE(eventually([&] { return count(keys_of(cluster), "/w/log/") < 15; }));
    a->add("sum", 1);
    auto c = open(uri);
    EXPECT_EQ(c->get("sum"), "8");
    EXPECT_EQ(c->get("large"), large);
    EXPECT_EQ(c->get("value"), value);
    EXPECT_EQ(c->get("early"), "kept");
    b.reset();
    EXPECT_EQ(c->get("left", kLongMs), "yes");
}

// Sets variables of the environment for its lifetime.
class Variables {
public:
    Variables(const std::string& user, const std::string& password) {
        setenv("DDP_ETCD_USER", user.c_str(), 1);
        setenv("DDP_ETCD_PASSWORD", password.c_str(), 1);
    }
    ~Variables() {
        unsetenv("DDP_ETCD_USER");
        unsetenv("DDP_ETCD_PASSWORD");
    }
    Variables(const Variables&) = delete;
};

TEST_F(Etcd, UsersAndPasswords) {
    EtcdCluster cluster(1);
    ASSERT_TRUE(cluster.control({"user", "add", "root:of all"}));
    ASSERT_TRUE(cluster.control({"user", "grant-role", "root", "root"}));
    ASSERT_TRUE(cluster.control({"user", "add", "job:its password"}));
    ASSERT_TRUE(cluster.control({"role", "add", "jobs"}));
    ASSERT_TRUE(cluster.control(
        {"role", "grant-permission", "jobs", "--prefix=true", "readwrite", "/ddp/test/"}));
    ASSERT_TRUE(cluster.control({"user", "grant-role", "job", "jobs"}));
    {
        Variables early("job", "its password");
        expect_error(DDP_ERROR_PERMISSION_DENIED, {"authentication is not enabled"},
                     [&] { open(cluster.uri()); });
    }
    ASSERT_TRUE(cluster.control({"auth", "enable"}));
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"DDP_ETCD_USER"}, [&] { open(cluster.uri()); });
    {
        Variables wrong("job", "another");
        const ErrorInfo error = error_of([&] { open(cluster.uri()); });
        EXPECT_EQ(error.code, DDP_ERROR_PERMISSION_DENIED);
        EXPECT_EQ(error.message.find("another"), std::string::npos) << error.message;
    }
    Variables right("job", "its password");
    const std::string uri = cluster.uri(3);
    auto a = open(uri);
    auto b = open(uri);
    a->set("k", "v");
    EXPECT_EQ(b->get("k"), "v");
    a->set_will("left", "yes");
    // longer than the lease and tokens
    std::this_thread::sleep_for(std::chrono::milliseconds(4000));
    EXPECT_FALSE(b->check({"left"}));
    a.reset();
    EXPECT_EQ(b->get("left", kLongMs), "yes");
    const std::string elsewhere = str("etcd://", cluster.endpoints(), "/other/job");
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"permission denied"}, [&] { open(elsewhere); });
}

TEST_F(Etcd, Tls) {
    TempPath folder;
    const std::string path = folder.file();
    const auto make = [&](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), "openssl");
        std::string said;
        ASSERT_EQ(run_program(arguments, &said), 0) << said;
    };
    const std::string authority = path + "-ca.pem";
    make({"req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
          "/CN=test authority", "-keyout", path + "-ca.key", "-out", authority});
    make({"req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=etcd",
          "-addext", "subjectAltName=IP:127.0.0.1", "-CA", authority, "-CAkey", path + "-ca.key",
          "-keyout", path + ".key", "-out", path + ".pem"});
    if (HasFatalFailure()) {  // openssl 3.0 knows no -CA for req
        return;
    }
    EtcdCluster cluster(1, {authority, path + ".pem", path + ".key"});
    const std::string uri = cluster.uri();
    auto a = open(uri + "&cacert=" + authority);
    auto b = open(uri + "&cacert=" + authority);
    a->set("k", "v");
    EXPECT_EQ(b->get("k"), "v");
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"certificate"}, [&] { open(uri); });
    const std::string plain = str("etcd://", cluster.endpoints(), "/test/plain");
    EXPECT_NE(error_of([&] { open(plain, false, "", 500); }).code, DDP_OK);
}

TEST_F(Etcd, OtherMachinesNeedTls) {
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"etcds://", "192.0.2.1", "DDP_INSECURE=1"},
                 [&] { open("etcd://127.0.0.1:1,192.0.2.1:2379/job"); });
}

TEST_F(Etcd, ItHasNoServerInLibddp) {
    expect_error(DDP_ERROR_INVALID_ARGUMENT, {"is_server"},
                 [&] { open("etcd://127.0.0.1:1/job", true); });
}

TEST_F(Etcd, NobodyListens) {
    HeldPort port;
    const std::string uri = "etcd" + port.uri().substr(3) + "/job";
    const auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_UNAVAILABLE, {uri, "was not reached"},
                 [&] { open(uri, false, "", 300); });
    EXPECT_LT(elapsed_ms(start), with_slack(2000));
}

TEST(EtcdJson, Base64) {
    for (std::string bytes : {std::string(), std::string("a"), std::string("ab"),
                              std::string("abc"), std::string("\0\xff\x80\0", 4)})
        EXPECT_EQ(etcd_json::from_base64(etcd_json::to_base64(bytes)), bytes);
    EXPECT_EQ(etcd_json::to_base64("any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
    for (const char* wrong : {"a", "ab=c", "====", "a===", "ab c"})
        EXPECT_EQ(error_of([&] { etcd_json::from_base64(wrong); }).code, DDP_ERROR_IO) << wrong;
}

TEST(EtcdJson, AnswersOfSomethingElse) {
    for (const char* wrong : {"", "[]", "null", "{", R"({"kvs":1})", R"({"kvs":[{"key":"?"}]})",
                              R"({"header":{"revision":"x"}})"})
        EXPECT_EQ(error_of([&] { etcd_json::decode_read(wrong); }).code, DDP_ERROR_IO) << wrong;
    EXPECT_EQ(error_of([&] { etcd_json::decode_commit(R"({"responses":{}})"); }).code,
              DDP_ERROR_IO);
    EXPECT_EQ(error_of([&] { etcd_json::decode_news(R"({"result":{"events":7}})"); }).code,
              DDP_ERROR_IO);
    EXPECT_TRUE(etcd_json::decode_news(R"({"error":{"message":"gone"}})").canceled);
}

}  // namespace
}  // namespace libddp::testing
