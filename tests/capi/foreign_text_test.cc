// Texts of others in errors: of the environment, files, addresses, the store, options, and peers. A
// terminal must not obey them.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "capi/lone_context.h"

namespace foreign_text_test {

// It sets the title of a terminal and clears it, is not UTF-8, and begins a line.
const std::string kOrders = "\x1b]0;t\x07\x1b[2J\xff";
const std::string kPrinted = "\\x1b]0;t\\x07\\x1b[2J\\xff";

// The call fails, and its message shows kOrders.
template <class Call>
void expect_printed(const char* door, Call call) {
    SCOPED_TRACE(door);
    ddp_error* error = nullptr;
    EXPECT_LT(call(&error), 0);
    const std::string message = take_message(error);
    EXPECT_THAT(message, testing::HasSubstr(kPrinted));
    EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](char c) {
        return (c >= 0 && c < ' ') || c == '\x7f' || c == '\xff';
    })) << message;
}

class ForeignText : public LoneContext {};

TEST_F(ForeignText, OfTheEnvironment) {
    const auto with_variable = [&](const char* name, auto call) {
        ASSERT_EQ(setenv(name, kOrders.c_str(), 1), 0);
        expect_printed(name, call);
        unsetenv(name);
    };
    const auto make_group = [](ddp_error** error) {
        Untouched<ddp_group*> made;
        return ddp_group_create(nullptr, &made, error);
    };
    setenv("DDP_RANK", "0", 1);
    setenv("DDP_WORLD_SIZE", "2", 1);
    setenv("DDP_TIMEOUT_MS", "2000", 1);
    with_variable("DDP_STORE", make_group);
    setenv("DDP_STORE", "tcp://127.0.0.1:1", 1);
    with_variable("DDP_SECRET_FILE", make_group);
    unsetenv("DDP_STORE");
    with_variable("DDP_TIMEOUT_MS", make_group);
    with_variable("DDP_WORLD_SIZE", make_group);
    setenv("DDP_WORLD_SIZE", "2", 1);
    with_variable("DDP_RANK", make_group);
    unsetenv("DDP_WORLD_SIZE");
    with_variable("DDP_DEBUG", [&](ddp_error** error) {
        Untouched<ddp_context*> made;
        return ddp_context_create(group, nullptr, &made, error);
    });
}

TEST_F(ForeignText, OfAddressesAndOptions) {
    for (const std::string& uri :
         {kOrders, "tcp://" + kOrders + ":1", "tcp://a:" + kOrders, "file://" + kOrders})
        expect_printed("the address of a store", [&](ddp_error** error) {
            ddp_store_options options;
            ddp_store_options_init(&options);
            options.uri = uri.c_str();
            Untouched<ddp_store*> store;
            return ddp_store_create(&options, &store, error);
        });
    const auto with_group = [](auto change) {
        return [change](ddp_error** error) {
            ddp_group_options options;
            ddp_group_options_init(&options);
            options.rank = 0;
            options.world_size = 1;
            change(options);
            Untouched<ddp_group*> made;
            return ddp_group_create(&options, &made, error);
        };
    };
    expect_printed("a backend", with_group([](auto& o) { o.backend = kOrders.c_str(); }));
    expect_printed("options of a backend", with_group([](auto& o) {
                       o.backend = "tcp";
                       o.backend_options = kOrders.c_str();
                   }));
    commit();
    expect_printed("a hook", calling(ddp_use_hook, context, kOrders.c_str(), nullptr));
    for (const std::string& options : {kOrders, kOrders + "=1", "rank=" + kOrders})
        expect_printed("options of a hook",
                       calling(ddp_use_hook, context, "powersgd", options.c_str()));
}

TEST_F(ForeignText, OfTheStore) {
    const auto file =
        std::filesystem::temp_directory_path() / ("ddp-foreign-text-" + std::to_string(getpid()));
    const std::string uri = "file://" + file.string();
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = uri.c_str();
    options.timeout_ms = 5'000;
    ddp_store* store = nullptr;
    ASSERT_EQ(ddp_store_create(&options, &store, nullptr), DDP_OK);
    EXPECT_EQ(ddp_store_set(store, kOrders.c_str(), kOrders.data(), kOrders.size(), nullptr),
              DDP_OK);
    std::int64_t sum = 0;
    expect_printed("a key and its value",
                   calling(ddp_store_add, store, kOrders.c_str(), std::int64_t{1}, &sum));
    ddp_store_free(store);
    std::filesystem::remove(file);
}

TEST_F(ForeignText, OfFiles) {
    commit();
    const std::string plan =
        R"({"libddp_plan": 1, "buckets": [{"params": [")" + kOrders + R"("]}]})";
    ddp_error* error = nullptr;
    EXPECT_LT(ddp_plan_adopt(context, plan.c_str(), &error), 0);
    const std::string message = take_message(error);
    EXPECT_EQ(message.find('\x1b'), message.npos) << message;
}

// The reason that one rank gives is the text that all of them read.
TEST_F(ForeignText, OfPeers) {
    ASSERT_EQ(ddp_group_abort(group, kOrders.c_str(), nullptr), DDP_OK);
    expect_printed("the cause of an abort", calling(ddp_group_status, group));
}

TEST_F(ForeignText, OfTheProgram) {
    ddp_error* const error =
        ddp_error_create(DDP_ERROR_CALLBACK, ("line 1\n\tline 2 " + kOrders).c_str());
    EXPECT_EQ(take_message(error), "line 1\n\tline 2 " + kPrinted);
}

}  // namespace foreign_text_test
