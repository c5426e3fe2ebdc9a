// hook.h and backend.h with arguments that make no sense, and hooks that misbehave.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "capi/lone_context.h"
#include "support/thread_backend.h"

namespace bad_input_hook_test {

ddp_status nothing(void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) {
    return DDP_OK;
}
void count(void* counter) {
    ++*static_cast<int*>(counter);
}

TEST(BadHook, NullHandles) {
    EXPECT_EQ(ddp_bucket_index(nullptr), -1);
    EXPECT_EQ(ddp_bucket_is_last(nullptr), -1);
    EXPECT_EQ(ddp_bucket_step(nullptr), -1);
    EXPECT_EQ(ddp_bucket_dtype(nullptr), 0);
    EXPECT_EQ(ddp_bucket_device(nullptr).kind, DDP_DEVICE_CPU);
    EXPECT_EQ(ddp_bucket_buffer(nullptr), nullptr);
    EXPECT_EQ(ddp_bucket_count(nullptr), 0u);
    EXPECT_EQ(ddp_bucket_param_count(nullptr), -1);
    Untouched<ddp_tensor> tensor;
    int destroyed = 0;
    float x = 0;
    expect_refused({
        null_argument("ddp_set_comm_hook", "context",
                      calling(ddp_set_comm_hook, nullptr, nothing, &destroyed, count)),
        null_argument("ddp_bucket_gradient", "bucket",
                      calling(ddp_bucket_gradient, nullptr, 0, &tensor)),
        null_argument("ddp_bucket_parameter", "bucket",
                      calling(ddp_bucket_parameter, nullptr, 0, &tensor)),
        null_argument("ddp_bucket_set_buffer", "bucket",
                      calling(ddp_bucket_set_buffer, nullptr, &x, DDP_F32)),
    });
    EXPECT_EQ(destroyed, 0);
}

// A hook that looks at one bucket with one f32 parameter.
ddp_status inspect(void* calls, ddp_group*, ddp_bucket* bucket, ddp_work**, ddp_error**) {
    ++*static_cast<int*>(calls);
    ddp_tensor sized;
    std::memset(&sized, 0, sizeof sized);
    auto tensor_of = [&](auto function, int32_t i, size_t struct_size) {
        return [=, &sized](ddp_error** e) {
            sized.struct_size = struct_size;
            return function(bucket, i, &sized, e);
        };
    };
    float x = 0;
    expect_refused({
        {"gradient -1", kInvalid, {"i is -1"}, tensor_of(ddp_bucket_gradient, -1, sizeof sized)},
        {"gradient 1",
         kInvalid,
         {"i is 1", "1 param"},
         tensor_of(ddp_bucket_gradient, 1, sizeof sized)},
        {"parameter 10^6",
         kInvalid,
         {"i is 1000000"},
         tensor_of(ddp_bucket_parameter, 1'000'000, sizeof sized)},
        {"struct_size 0", kInvalid, {"struct_size is 0"}, tensor_of(ddp_bucket_gradient, 0, 0)},
        {"half a field", kInvalid, {"struct_size is 12"}, tensor_of(ddp_bucket_gradient, 0, 12)},
        {"gradient: no output",
         kInvalid,
         {"tensor is NULL"},
         calling(ddp_bucket_gradient, bucket, 0, nullptr)},
        {"parameter: no output",
         kInvalid,
         {"tensor is NULL"},
         calling(ddp_bucket_parameter, bucket, 0, nullptr)},
        {"set_buffer: none",
         kInvalid,
         {"buffer is NULL"},
         calling(ddp_bucket_set_buffer, bucket, nullptr, DDP_F32)},
        {"set_buffer: integers",
         DDP_ERROR_UNSUPPORTED,
         {"i32", "f32"},
         calling(ddp_bucket_set_buffer, bucket, &x, DDP_I32)},
        {"set_buffer: complex",
         DDP_ERROR_UNSUPPORTED,
         {"c64"},
         calling(ddp_bucket_set_buffer, bucket, &x, DDP_C64)},
        {"set_buffer: unknown",
         DDP_ERROR_UNSUPPORTED,
         {"unknown"},
         calling(ddp_bucket_set_buffer, bucket, &x, 77)},
        {"set_buffer: its own, other type",
         kInvalid,
         {"bucket's own", "f32"},
         calling(ddp_bucket_set_buffer, bucket, ddp_bucket_buffer(bucket), DDP_F16)},
        {"set_buffer: inside its own",
         kInvalid,
         {"bucket's own", "f32"},
         calling(ddp_bucket_set_buffer, bucket, static_cast<float*>(ddp_bucket_buffer(bucket)) + 1,
                 DDP_F32)},
    });
    expect_accepted(calling(ddp_bucket_set_buffer, bucket, ddp_bucket_buffer(bucket), DDP_F32));
    EXPECT_EQ(sized.data, nullptr) << "a refused call wrote";
    // A caller from an older header receives only the fields that it has.
    Untouched<int32_t> beyond;
    sized.struct_size = offsetof(ddp_tensor, shape);
    sized.ndim = 77;
    expect_accepted(calling(ddp_bucket_gradient, bucket, 0, &sized));
    EXPECT_NE(sized.data, nullptr);
    EXPECT_EQ(sized.ndim, 77);
    return DDP_OK;
}

class HookedContext : public LoneContext {
protected:
    void SetUp() override {
        LoneContext::SetUp();
        commit({"p"});
    }
    // The message of the step's error, which must have this status and name bucket 0 of step 0.
    std::string failing_step(ddp_comm_hook_fn hook, ddp_status status) {
        EXPECT_EQ(ddp_set_comm_hook(context, hook, nullptr, nullptr, nullptr), DDP_OK);
        ddp_grad_ready(context, 0, nullptr);
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_finalize(context, &error), status);
        const Facts facts = take_facts(error);
        EXPECT_EQ(facts, (Facts{status, 0, -1, 0, 0}));
        return facts.message;
    }
};

TEST_F(HookedContext, BucketAccessors) {
    int calls = 0;
    expect_accepted(calling(ddp_set_comm_hook, context, inspect, &calls, nullptr));
    EXPECT_EQ(ddp_grad_ready(context, 0, nullptr), DDP_OK);
    EXPECT_EQ(ddp_finalize(context, nullptr), DDP_OK);
    EXPECT_EQ(calls, 1);
}

TEST_F(HookedContext, UserDataIsDestroyedOnce) {
    int destroyed = 0;
    expect_accepted(calling(ddp_set_comm_hook, context, nothing, &destroyed, count));
    expect_accepted(calling(ddp_set_comm_hook, context, nullptr, nullptr, nullptr));
    EXPECT_EQ(destroyed, 1);
}

TEST_F(HookedContext, AHookThatSaysNothingButFails) {
    auto hook = [](void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) -> ddp_status {
        return DDP_ERROR_LIMIT;
    };
    failing_step(hook, DDP_ERROR_LIMIT);
}

TEST_F(HookedContext, AHookWithAStatusThatDoesNotExist) {
    auto hook = [](void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) -> ddp_status {
        return 5;
    };
    failing_step(hook, DDP_ERROR_CALLBACK);
}

TEST_F(HookedContext, AHookThatFailsAndLeavesAWorkAndAnError) {
    auto hook = [](void*, ddp_group*, ddp_bucket*, ddp_work** work,
                   ddp_error** error) -> ddp_status {
        ddp_work_create(0, work, nullptr);
        *error = ddp_error_create(DDP_ERROR_IO, "disk full");
        return DDP_ERROR_IO;
    };
    EXPECT_THAT(failing_step(hook, DDP_ERROR_IO), testing::HasSubstr("disk full"));
}

TEST_F(HookedContext, AWorkThatIsNeverCompletedTimesOut) {
    auto hook = [](void*, ddp_group*, ddp_bucket*, ddp_work** work, ddp_error**) {
        return ddp_work_create(50, work, nullptr);
    };
    failing_step(hook, DDP_ERROR_TIMEOUT);
}

ddp_backend valid_backend() {
    ddp_backend backend;
    std::memset(&backend, 0, sizeof backend);
    backend.struct_size = sizeof backend;
    backend.abi_version = DDP_BACKEND_ABI_VERSION;
    backend.name = "bad-input";
    backend.create = [](const ddp_backend_host*, void**, ddp_backend_failure*) -> ddp_status {
        return DDP_ERROR_UNSUPPORTED;
    };
    backend.destroy = [](void*) {};
    backend.capabilities = [](void*) { return 0u; };
    backend.abort = [](void*) {};
    backend.run = [](void*, const ddp_collective*, ddp_backend_failure*) -> ddp_status {
        return DDP_OK;
    };
    return backend;
}

TEST(BadBackend, Register) {
    static const std::string long_name(65, 'n');
    auto with = [](auto change) {
        return [change](ddp_error** e) {
            auto backend = valid_backend();
            change(backend);
            return ddp_backend_register(&backend, e);
        };
    };
    const std::vector<std::string> required{"'bad-input'", "required"};
    const auto unsupported = DDP_ERROR_UNSUPPORTED;
    expect_refused({
        {"none", kInvalid, {"backend is NULL"}, calling(ddp_backend_register, nullptr)},
        {"struct_size 0", unsupported, {"struct_size 0"}, with([](auto& b) { b.struct_size = 0; })},
        {"older", unsupported, {"struct_size"}, with([](auto& b) {
             b.struct_size = offsetof(ddp_backend, ready) - 8;
         })},
        {"abi_version 0", unsupported, {"abi_version 0"}, with([](auto& b) { b.abi_version = 0; })},
        {"abi_version 2", unsupported, {"abi_version 2"}, with([](auto& b) { b.abi_version = 2; })},
        {"no name", kInvalid, {"name"}, with([](auto& b) { b.name = nullptr; })},
        {"empty name", kInvalid, {"name ''"}, with([](auto& b) { b.name = ""; })},
        {"capitals", kInvalid, {"name 'Bad'"}, with([](auto& b) { b.name = "Bad"; })},
        {"a path", kInvalid, {"'../bad'"}, with([](auto& b) { b.name = "../bad"; })},
        {"auto", kInvalid, {"'auto'"}, with([](auto& b) { b.name = "auto"; })},
        {"long name", kInvalid, {"name"}, with([](auto& b) { b.name = long_name.c_str(); })},
        {"no create", kInvalid, required, with([](auto& b) { b.create = nullptr; })},
        {"no destroy", kInvalid, required, with([](auto& b) { b.destroy = nullptr; })},
        {"no capabilities", kInvalid, required, with([](auto& b) { b.capabilities = nullptr; })},
        {"no abort", kInvalid, required, with([](auto& b) { b.abort = nullptr; })},
        {"no run", kInvalid, required, with([](auto& b) { b.run = nullptr; })},
        {"allocate alone", kInvalid, {"deallocate"}, with([](auto& b) {
             b.allocate = [](void*, size_t, ddp_device, void**,
                             ddp_backend_failure*) -> ddp_status { return DDP_OK; };
         })},
        {"deallocate alone", kInvalid, {"allocate"}, with([](auto& b) {
             b.deallocate = [](void*, void*) {};
         })},
        {"built in", DDP_ERROR_ALREADY_EXISTS, {"'tcp'"}, with([](auto& b) { b.name = "tcp"; })},
    });
    register_thread_backend();
    expect_refused({{"twice", DDP_ERROR_ALREADY_EXISTS, {"'threads'"}, with([](auto& b) {
                         b.name = "threads";
                     })}});
}

TEST(BadBackend, Available) {
    for (const char* name :
         {static_cast<const char*>(nullptr), "", "carrier-pigeon", "../gloo", "Gloo"}) {
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_backend_available(name, &error), 0);
        EXPECT_EQ(ddp_error_code(error), name ? DDP_ERROR_NOT_FOUND : DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(take_message(error), testing::HasSubstr(name ? name : "name is NULL"));
        EXPECT_EQ(ddp_backend_available(name, nullptr), 0);
    }
    for (const char* name : {"gloo", "auto"})
        EXPECT_EQ(ddp_backend_available(name, nullptr), 1) << name;
}

// A folder that DDP_MODULE_PATH names, with a file of a module's name.
struct ModuleFolder {
    ModuleFolder() {
        std::ofstream(module) << "no module";
        if (const char* path = std::getenv("DDP_MODULE_PATH")) before = path;
        setenv("DDP_MODULE_PATH", folder, 1);
    }
    ~ModuleFolder() {
        if (before.empty())
            unsetenv("DDP_MODULE_PATH");
        else
            setenv("DDP_MODULE_PATH", before.c_str(), 1);
        std::filesystem::remove_all(folder);
    }
    // The text about a search for the module.
    static std::string found() {
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_backend_available("stranger", &error), 0);
        return take_message(error);
    }

    char folder[32] = "/tmp/ddp-modules-XXXXXX";
    const std::string module = std::string(mkdtemp(folder)) + "/libddp-stranger.so";
    std::string before;
};

TEST(BadBackend, RootLoadsOnlyWhatIsRoots) {
    if (geteuid() != 0) GTEST_SKIP() << "for root only";
    const ModuleFolder modules;
    const char *loaded = "file too short",  // says the loader
        *writable = "other users can write to";
    struct {
        uid_t owner;
        mode_t file, folder;
        const char* words;
    } const cases[] = {
        {0, 0644, 0700, loaded},
        {65534, 0644, 0700, "libddp-stranger.so belongs to user 65534, and this process is root's"},
        {0, 0666, 0700, writable},
        {0, 0644, 0777, writable},
        {0, 0644, 01777, loaded},  // nobody can replace another user's file
    };
    for (const auto& c : cases) {
        ASSERT_EQ(chown(modules.module.c_str(), c.owner, c.owner), 0);
        ASSERT_EQ(chmod(modules.module.c_str(), c.file), 0);
        ASSERT_EQ(chmod(modules.folder, c.folder), 0);
        EXPECT_THAT(ModuleFolder::found(), testing::HasSubstr(c.words));
    }
}

// A name is part of a path, and must not lead out of the folder.
TEST(BadBackend, NamesThatArePaths) {
    const ModuleFolder modules;
    ASSERT_TRUE(std::filesystem::create_directory(std::string(modules.folder) + "/libddp-x"));
    for (const char* name :
         {"x/../stranger", "../stranger", "/tmp/x", ".", "x.so", "x y", "x\x1b[2J"}) {
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_backend_available(name, &error), 0) << name;
        const std::string message = take_message(error);
        EXPECT_THAT(message, testing::HasSubstr("is no name of a module")) << name;
        EXPECT_THAT(message, testing::Not(testing::HasSubstr(modules.folder))) << name;
    }
}

// Somebody who may rename a folder above puts another file there after the check.
TEST(BadBackend, RootLoadsTheFileThatItHasChecked) {
    if (geteuid() != 0) GTEST_SKIP() << "for root only";
    const ModuleFolder modules;
    const std::string folder = modules.folder, other = folder + "-other";
    ASSERT_TRUE(std::filesystem::create_directory(other));
    // "invalid ELF header" if it is loaded
    std::ofstream(other + "/libddp-stranger.so") << std::string(4096, 'x');
    ASSERT_EQ(chown(other.c_str(), 65534, 65534), 0);
    std::atomic<bool> end{false};
    std::thread swapper([&] {
        while (!end) renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
    });
    int checked = 0, refused = 0;
    for (int i = 0; i < 20'000 || ((checked == 0 || refused == 0) && i < 2'000'000); ++i) {
        const std::string message = ModuleFolder::found();
        ASSERT_THAT(message, testing::Not(testing::HasSubstr("invalid ELF header")))
            << "after " << i;
        checked += message.find("file too short") != message.npos;
        refused += message.find("belongs to user 65534") != message.npos;
    }
    end = true;
    swapper.join();
    EXPECT_GT(checked, 0);
    EXPECT_GT(refused, 0);
    std::filesystem::remove_all(other);
}

TEST(BadBackend, OneThatCannotConnectSaysSo) {
    static const ddp_backend backend = valid_backend();
    ASSERT_EQ(ddp_backend_register(&backend, nullptr), DDP_OK);
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.rank = 0;
    options.world_size = 1;
    options.backend = "bad-input";
    Untouched<ddp_group*> out;
    expect_refused({{"create",
                     DDP_ERROR_UNSUPPORTED,
                     {"bad-input", "connecting"},
                     calling(ddp_group_create, &options, &out)}});
}

}  // namespace bad_input_hook_test
