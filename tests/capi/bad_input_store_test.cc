// store.h with arguments that make no sense.
#include <unistd.h>

#include <filesystem>

#include "capi/bad_input.h"

namespace bad_input_store_test {

std::string temporary_uri(const char* name) {
    return "file://" +
           (std::filesystem::temp_directory_path() / (std::string(name) + std::to_string(getpid())))
               .string();
}

ddp_store_options options_for(const std::string& uri) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = uri.c_str();
    options.timeout_ms = 5'000;
    return options;
}

TEST(BadStore, OptionsInitAndFreesAcceptNull) {
    ddp_store_options_init(nullptr);
    ddp_store_free(nullptr);
    ddp_free(nullptr);
    EXPECT_EQ(ddp_store_port(nullptr), -1);
}

TEST(BadStore, Create) {
    const std::string uri = temporary_uri("ddp-bad-store-");
    Untouched<ddp_store*> out;
    auto with = [&](auto change) {
        return [&, change](ddp_error** e) {
            auto options = options_for(uri);
            change(options);
            return ddp_store_create(&options, &out, e);
        };
    };
    auto with_uri = [&](const char* text) { return with([text](auto& o) { o.uri = text; }); };
    const auto good = options_for(uri);
    expect_refused({
        {"no options",
         kInvalid,
         {"ddp_store_create", "options"},
         calling(ddp_store_create, nullptr, &out)},
        {"no output",
         kInvalid,
         {"ddp_store_create", "store"},
         calling(ddp_store_create, &good, nullptr)},
        {"no uri", kInvalid, {"ddp_store_create", "uri"}, with_uri(nullptr)},
        {"empty uri", kInvalid, {"uri"}, with_uri("")},
        {"another scheme", kInvalid, {"uri", "http://a:1"}, with_uri("http://a:1")},
        {"no host", kInvalid, {"tcp://:1", "host"}, with_uri("tcp://:1")},
        {"no port", kInvalid, {"tcp://a", "port"}, with_uri("tcp://a")},
        {"a port of letters", kInvalid, {"port 'x'"}, with_uri("tcp://a:x")},
        {"a negative port", kInvalid, {"port"}, with_uri("tcp://a:-1")},
        {"a large port", kInvalid, {"65536"}, with_uri("tcp://a:65536")},
        {"an open bracket", kInvalid, {"["}, with_uri("tcp://[::1:80")},
        {"a bare IPv6 address", kInvalid, {"bracket"}, with_uri("tcp://::1:80")},
        {"a relative path", kInvalid, {"relative"}, with_uri("file://a/b")},
        {"a folder", kInvalid, {"folder"}, with_uri("file:///tmp/")},
        {"port 0 for a client", kInvalid, {"port 0"}, with_uri("tcp://127.0.0.1:0")},
        {"a file server", kInvalid, {"is_server"}, with([](auto& o) { o.is_server = 1; })},
        {"a negative timeout", kInvalid, {"timeout_ms", "-1"}, with([](auto& o) {
             o.timeout_ms = -1;
         })},
        {"unknown flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x6"}, with([](auto& o) {
             o.flags = 7;
         })},
        {"no secret",
         DDP_ERROR_PERMISSION_DENIED,
         {"192.0.2.1", "DDP_SECRET"},
         with_uri("tcp://192.0.2.1:1")},
        {"a short secret",
         DDP_ERROR_PERMISSION_DENIED,
         {"192.0.2.1", "16 bytes"},
         with([](auto& o) { o.uri = "tcp://192.0.2.1:1", o.secret = "short"; })},
    });
    check_struct_size(good, "options", [](const ddp_store_options* options, ddp_error** e) {
        ddp_store* store = nullptr;
        const ddp_status status = ddp_store_create(options, &store, e);
        ddp_store_free(store);
        return status;
    });
}

TEST(BadStore, AnOlderStructTakesDefaultsForTheRest) {
    auto options = options_for("");
    options.uri = "tcp://127.0.0.1:0";
    options.is_server = 1;
    options.struct_size = offsetof(ddp_store_options, timeout_ms);
    options.timeout_ms = -5;  // beyond struct_size: not read
    ddp_store* store = nullptr;
    expect_accepted(calling(ddp_store_create, &options, &store));
    ddp_store_free(store);
}

TEST(BadStore, TheFlagAllowsAnyAddressWithoutASecret) {
    auto options = options_for("");
    options.uri = "tcp://0.0.0.0:0";
    options.is_server = 1;
    options.flags = DDP_STORE_INSECURE;
    ddp_store* store = nullptr;
    expect_accepted(calling(ddp_store_create, &options, &store));
    ddp_store_free(store);
}

// Both kinds of store must refuse alike.
class BadStoreCall : public testing::TestWithParam<const char*> {
protected:
    void SetUp() override {
        const bool tcp = GetParam() == std::string("tcp");
        const std::string uri = tcp ? "tcp://127.0.0.1:0" : temporary_uri("ddp-bad-call-");
        auto options = options_for(uri);
        options.is_server = tcp;
        ASSERT_EQ(ddp_store_create(&options, &store, nullptr), DDP_OK);
    }
    void TearDown() override { ddp_store_free(store); }

    ddp_store* store = nullptr;
    Untouched<void*> value;
    Untouched<size_t> size;
    Untouched<int64_t> number;
    Untouched<int32_t> flag;
};

INSTANTIATE_TEST_SUITE_P(Kinds, BadStoreCall, testing::Values("tcp", "file"),
                         [](const auto& kind) { return kind.param; });

TEST_P(BadStoreCall, NullHandles) {
    const char* keys[] = {"k"};
    const std::vector<std::string> named{"store is NULL"};
    expect_refused({
        {"set", kInvalid, named, calling(ddp_store_set, nullptr, "k", "v", 1)},
        {"get", kInvalid, named, calling(ddp_store_get, nullptr, "k", -1, &value, &size)},
        {"compare_set", kInvalid, named,
         calling(ddp_store_compare_set, nullptr, "k", "", 0, "v", 1, &value, &size)},
        {"add", kInvalid, named, calling(ddp_store_add, nullptr, "k", 1, &number)},
        {"check", kInvalid, named, calling(ddp_store_check, nullptr, keys, 1, &flag)},
        {"wait", kInvalid, named, calling(ddp_store_wait, nullptr, keys, 1, -1)},
        {"delete", kInvalid, named, calling(ddp_store_delete, nullptr, "k", &flag)},
        {"list_keys", kInvalid, named, calling(ddp_store_list_keys, nullptr, "", &value, &size)},
    });
}

TEST_P(BadStoreCall, NullOutputs) {
    const char* keys[] = {"k"};
    expect_refused({
        {"get value",
         kInvalid,
         {"value is NULL"},
         calling(ddp_store_get, store, "k", -1, nullptr, &size)},
        {"get size",
         kInvalid,
         {"size is NULL"},
         calling(ddp_store_get, store, "k", -1, &value, nullptr)},
        {"compare_set value",
         kInvalid,
         {"value is NULL"},
         calling(ddp_store_compare_set, store, "k", "", 0, "v", 1, nullptr, &size)},
        {"compare_set size",
         kInvalid,
         {"size is NULL"},
         calling(ddp_store_compare_set, store, "k", "", 0, "v", 1, &value, nullptr)},
        {"add", kInvalid, {"sum is NULL"}, calling(ddp_store_add, store, "k", 1, nullptr)},
        {"check", kInvalid, {"exists is NULL"}, calling(ddp_store_check, store, keys, 1, nullptr)},
        {"list_keys keys",
         kInvalid,
         {"keys is NULL"},
         calling(ddp_store_list_keys, store, "", nullptr, &size)},
        {"list_keys size",
         kInvalid,
         {"size is NULL"},
         calling(ddp_store_list_keys, store, "", &value, nullptr)},
    });
    void* all = nullptr;
    size_t bytes = 1;
    expect_accepted(calling(ddp_store_list_keys, store, "", &all, &bytes));
    ddp_free(all);
    EXPECT_EQ(bytes, 0U) << "a refused call changed the store";
}

TEST_P(BadStoreCall, KeysAndValues) {
    const std::string long_key(1025, 'k');
    const char* null_keys[] = {"k", nullptr};
    const char* long_keys[] = {"k", long_key.c_str()};
    expect_refused({
        {"set: no key", kInvalid, {"key is NULL"}, calling(ddp_store_set, store, nullptr, "v", 1)},
        {"set: empty key", kInvalid, {"key"}, calling(ddp_store_set, store, "", "v", 1)},
        {"set: long key",
         DDP_ERROR_LIMIT,
         {"key", "1024"},
         calling(ddp_store_set, store, long_key.c_str(), "v", 1)},
        {"set: no value",
         kInvalid,
         {"value is NULL"},
         calling(ddp_store_set, store, "k", nullptr, 1)},
        {"get: no key",
         kInvalid,
         {"key is NULL"},
         calling(ddp_store_get, store, nullptr, -1, &value, &size)},
        {"get: empty key", kInvalid, {"key"}, calling(ddp_store_get, store, "", -1, &value, &size)},
        {"get: no such key",
         DDP_ERROR_TIMEOUT,
         {"'absent'"},
         calling(ddp_store_get, store, "absent", -1, &value, &size)},
        {"compare_set: no key",
         kInvalid,
         {"key is NULL"},
         calling(ddp_store_compare_set, store, nullptr, "", 0, "v", 1, &value, &size)},
        {"compare_set: no expected",
         kInvalid,
         {"expected is NULL"},
         calling(ddp_store_compare_set, store, "k", nullptr, 1, "v", 1, &value, &size)},
        {"compare_set: no desired",
         kInvalid,
         {"desired is NULL"},
         calling(ddp_store_compare_set, store, "k", "", 0, nullptr, 1, &value, &size)},
        {"add: no key",
         kInvalid,
         {"key is NULL"},
         calling(ddp_store_add, store, nullptr, 1, &number)},
        {"check: no keys",
         kInvalid,
         {"keys is NULL"},
         calling(ddp_store_check, store, nullptr, 1, &flag)},
        {"check: a NULL key",
         kInvalid,
         {"a key is NULL"},
         calling(ddp_store_check, store, null_keys, 2, &flag)},
        {"wait: no keys",
         kInvalid,
         {"keys is NULL"},
         calling(ddp_store_wait, store, nullptr, 1, -1)},
        {"wait: long key",
         DDP_ERROR_LIMIT,
         {"key"},
         calling(ddp_store_wait, store, long_keys, 2, -1)},
        {"wait: absent",
         DDP_ERROR_TIMEOUT,
         {"'k'"},
         calling(ddp_store_wait, store, null_keys, 1, -1)},
        {"delete: no key",
         kInvalid,
         {"key is NULL"},
         calling(ddp_store_delete, store, nullptr, &flag)},
    });
}

TEST_P(BadStoreCall, AddRefusesWhatIsNoIntegerOrDoesNotFit) {
    int64_t sum = 0;
    ASSERT_EQ(ddp_store_set(store, "text", "twelve", 6, nullptr), DDP_OK);
    ASSERT_EQ(ddp_store_add(store, "full", INT64_MAX, &sum, nullptr), DDP_OK);
    expect_refused({
        {"not an integer", kInvalid, {"text"}, calling(ddp_store_add, store, "text", 1, &number)},
        {"overflow", kInvalid, {"full"}, calling(ddp_store_add, store, "full", 1, &number)},
    });
}

TEST_P(BadStoreCall, AValueAboveTheLimitIsRefusedAndTheStoreGoesOn) {
    const std::string large((std::size_t{64} << 20) + 1, 'x');
    expect_refused({{"65 MiB",
                     DDP_ERROR_LIMIT,
                     {"64"},
                     calling(ddp_store_set, store, "k", large.data(), large.size())}});
    expect_accepted(calling(ddp_store_set, store, "k", nullptr, 0));
}

TEST_P(BadStoreCall, EmptyListsAndOptionalOutputsAreFine) {
    int32_t exists = 0;
    expect_accepted(calling(ddp_store_check, store, nullptr, 0, &exists));
    EXPECT_EQ(exists, 1);
    expect_accepted(calling(ddp_store_wait, store, nullptr, 0, -1));
    expect_accepted(calling(ddp_store_delete, store, "absent", nullptr));
}

}  // namespace bad_input_store_test
