// group.h with arguments that make no sense: joining, collectives, works.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "capi/bad_input.h"
#include "support/thread_backend.h"

namespace bad_input_group_test {

ddp_group_options lone_options() {
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.rank = 0;
    options.world_size = 1;
    options.timeout_ms = 2'000;
    return options;
}

// The environment of whoever runs the tests must not look like a launcher's.
void forget_launcher() {
    for (const char* name :
         {"DDP_RANK", "DDP_WORLD_SIZE", "DDP_STORE", "RANK", "WORLD_SIZE", "MASTER_ADDR",
          "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
          "SLURM_PROCID", "JOB_COMPLETION_INDEX"})
        unsetenv(name);
}

TEST(BadGroup, NullHandles) {
    ddp_group_options_init(nullptr);
    ddp_group_free(nullptr);
    ddp_work_free(nullptr);
    EXPECT_EQ(ddp_group_rank(nullptr), -1);
    EXPECT_EQ(ddp_group_world_size(nullptr), -1);
    EXPECT_EQ(ddp_group_backend(nullptr), nullptr);
    float x[1] = {0};
    Untouched<ddp_work*> work;
    Untouched<ddp_group*> group;
    Untouched<ddp_store*> store;
    Untouched<int32_t> done;
    auto nothing = [](void*, ddp_work**, ddp_error**) -> ddp_status { return DDP_OK; };
    expect_refused({
        null_argument("ddp_group_create", "group", calling(ddp_group_create, nullptr, nullptr)),
        null_argument("ddp_group_split", "group", calling(ddp_group_split, nullptr, 0, 0, &group)),
        null_argument("ddp_group_round_robin", "groups",
                      calling(ddp_group_round_robin, nullptr, 1, &group)),
        null_argument("ddp_group_abort", "group", calling(ddp_group_abort, nullptr, "x")),
        null_argument("ddp_group_status", "group", calling(ddp_group_status, nullptr)),
        null_argument("ddp_group_store", "group", calling(ddp_group_store, nullptr, &store)),
        null_argument("ddp_allreduce", "group",
                      calling(ddp_allreduce, nullptr, x, x, 1, DDP_F32, DDP_SUM, &work)),
        null_argument("ddp_broadcast", "group",
                      calling(ddp_broadcast, nullptr, x, 1, DDP_F32, 0, &work)),
        null_argument("ddp_allgather", "group",
                      calling(ddp_allgather, nullptr, x, x, 1, DDP_F32, &work)),
        null_argument("ddp_reduce_scatter", "group",
                      calling(ddp_reduce_scatter, nullptr, x, x, 1, DDP_F32, DDP_SUM, &work)),
        null_argument("ddp_barrier", "group", calling(ddp_barrier, nullptr, &work)),
        null_argument("ddp_work_test", "work", calling(ddp_work_test, nullptr, &done)),
        null_argument("ddp_work_wait", "work", calling(ddp_work_wait, nullptr, 1)),
        null_argument("ddp_work_then", "work",
                      calling(ddp_work_then, nullptr, nothing, nullptr, nullptr, 0, &work)),
        null_argument("ddp_work_create", "work", calling(ddp_work_create, 1, nullptr)),
        null_argument("ddp_work_complete", "work",
                      calling(ddp_work_complete, nullptr, DDP_OK, nullptr)),
    });
}

TEST(BadGroup, Create) {
    forget_launcher();
    Untouched<ddp_group*> out;
    const std::string long_name(257, 'n');
    auto with = [&](auto change) {
        return [&, change](ddp_error** e) {
            auto options = lone_options();
            change(options);
            return ddp_group_create(&options, &out, e);
        };
    };
    auto place = [&](int32_t rank, int32_t world) {
        return with([=](auto& o) { o.rank = rank, o.world_size = world; });
    };
    auto method = [&](const char* text) {
        return with([=](auto& o) { o.world_size = 2, o.init_method = text; });
    };
    expect_refused({
        {"no output",
         kInvalid,
         {"group is NULL"},
         [](ddp_error** e) {
             auto o = lone_options();
             return ddp_group_create(&o, nullptr, e);
         }},
        {"world 0", kInvalid, {"world_size is 0"}, place(0, 0)},
        {"world -2", kInvalid, {"world_size is -2"}, place(0, -2)},
        {"rank = world", kInvalid, {"rank is 2", "0 to 1"}, place(2, 2)},
        {"rank > world", kInvalid, {"rank is 9"}, place(9, 1)},
        {"rank -2", kInvalid, {"rank is -2"}, place(-2, 2)},
        {"nothing given, no environment",
         DDP_ERROR_NOT_FOUND,
         {"env://"},
         calling(ddp_group_create, nullptr, &out)},
        {"world 2, no environment", DDP_ERROR_NOT_FOUND, {"env://", "ddprun"}, place(0, 2)},
        {"empty name", kInvalid, {"group_name", "0 bytes"}, with([](auto& o) {
             o.group_name = "";
         })},
        {"long name", kInvalid, {"group_name", "257 bytes"}, with([&](auto& o) {
             o.group_name = long_name.c_str();
         })},
        {"negative timeout", kInvalid, {"timeout_ms is -1"}, with([](auto& o) {
             o.timeout_ms = -1;
         })},
        {"unknown flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x80"}, with([](auto& o) {
             o.flags = 0x81;
         })},
        {"too many groups", kInvalid, {"round_robin is 65"}, with([](auto& o) {
             o.round_robin = 65;
         })},
        {"unknown backend", DDP_ERROR_NOT_FOUND, {"'carrier-pigeon'", "tcp"}, with([](auto& o) {
             o.backend = "carrier-pigeon";
         })},
        {"a path as backend", DDP_ERROR_NOT_FOUND, {"../x"}, with([](auto& o) {
             o.backend = "../x";
         })},
        {"empty backend", DDP_ERROR_NOT_FOUND, {"''"}, with([](auto& o) { o.backend = ""; })},
        {"unknown option", kInvalid, {"backend_options", "'speed'"}, with([](auto& o) {
             o.backend_options = "speed=1";
         })},
        {"malformed option", kInvalid, {"backend_options", "'speed'"}, with([](auto& o) {
             o.backend_options = "speed";
         })},
        {"option twice", kInvalid, {"'algorithm'", "twice"}, with([](auto& o) {
             o.backend_options = "algorithm=ring,algorithm=ring";
         })},
        {"unknown algorithm", kInvalid, {"algorithm 'magic'"}, with([](auto& o) {
             o.backend_options = "algorithm=magic";
         })},
        {"unknown method", kInvalid, {"init_method", "'carrier://x'"}, method("carrier://x")},
        {"empty method", kInvalid, {"init_method", "''"}, method("")},
        {"tcp without port", kInvalid, {"tcp://localhost", "port"}, method("tcp://localhost")},
        {"relative file", kInvalid, {"file://a", "relative"}, method("file://a")},
        {"no secret",
         DDP_ERROR_PERMISSION_DENIED,
         {"192.0.2.1", "DDP_SECRET"},
         method("tcp://192.0.2.1:1")},
        {"a short secret",
         DDP_ERROR_PERMISSION_DENIED,
         {"192.0.2.1", "16 bytes"},
         with([](auto& o) { o.init_method = "tcp://192.0.2.1:1", o.secret = "short"; })},
    });
    check_struct_size(lone_options(), "options",
                      [](const ddp_group_options* options, ddp_error** e) {
                          ddp_group* group = nullptr;
                          const ddp_status status = ddp_group_create(options, &group, e);
                          ddp_group_free(group);
                          return status;
                      });
}

TEST(BadGroup, TheFlagAllowsAnyAddressWithoutASecret) {
    auto options = lone_options();
    options.init_method = "tcp://0.0.0.0:0";
    options.flags = DDP_GROUP_INSECURE;
    ddp_group* group = nullptr;
    expect_accepted(calling(ddp_group_create, &options, &group));
    ddp_group_free(group);
}

TEST(BadGroup, AnOlderStructTakesDefaultsForTheRest) {
    auto options = lone_options();
    options.struct_size = offsetof(ddp_group_options, backend);
    options.backend = "carrier-pigeon";  // beyond struct_size: not read
    ddp_group* group = nullptr;
    expect_accepted(calling(ddp_group_create, &options, &group));
    EXPECT_STREQ(ddp_group_backend(group), "shm") << "what auto means for one rank";
    ddp_group_free(group);
}

TEST(BadGroup, EnvironmentOfAnyHeader) {
    setenv("DDP_RANK", "1", 1);
    setenv("DDP_WORLD_SIZE", "2", 1);
    setenv("DDP_STORE", "tcp://127.0.0.1:1", 1);
    ddp_environment environment;
    std::memset(&environment, 0x5a, sizeof environment);
    auto get = [&](std::size_t size) {
        return [&, size](ddp_error** e) {
            environment.struct_size = size;
            return ddp_environment_get(&environment, e);
        };
    };
    expect_refused({
        {"struct_size 0",
         kInvalid,
         {"ddp_environment_get", "environment->struct_size is 0"},
         get(0)},
        {"half a field", kInvalid, {"environment->struct_size is 12"}, get(12)},
        {"struct_size not set",
         kInvalid,
         {"environment->struct_size"},
         get(std::size_t{0x5a5a5a5a5a5a5a58})},
    });
    EXPECT_EQ(environment.rank, 0x5a5a5a5a) << "a refused call wrote";
    for (const std::size_t size :
         {offsetof(ddp_environment, launcher), offsetof(ddp_environment, launcher) + 8}) {
        expect_accepted(get(size));
        EXPECT_EQ(environment.rank, 1);
        EXPECT_EQ(environment.struct_size, size);
        EXPECT_EQ(environment.launcher[0], 0x5a) << "a part of the name, without its end";
    }
    expect_accepted(get(sizeof environment));
    EXPECT_STREQ(environment.launcher, "ddprun");
    forget_launcher();
}

TEST(BadGroup, RoundRobin) {
    const auto options = lone_options();
    std::vector<ddp_group*> all(4);
    for (auto*& group : all) ASSERT_EQ(ddp_group_create(&options, &group, nullptr), DDP_OK);
    ddp_group *two = nullptr, *used = nullptr;
    ASSERT_EQ(ddp_group_round_robin(&all[2], 2, &two, nullptr), DDP_OK);
    const std::vector<ddp_group*> many(65, all[0]);
    ddp_group* const repeated[] = {all[0], all[1], all[0]};
    ddp_group* const missing[] = {all[0], nullptr};
    ddp_group* const nested[] = {all[0], two};
    ddp_group* const taken[] = {all[0], all[1], all[3]};
    Untouched<ddp_group*> out;
    const auto with = [&](ddp_group* const* groups, size_t n) {
        return calling(ddp_group_round_robin, groups, n, &out);
    };
    const char* call = "ddp_group_round_robin";
    expect_refused({
        {"none", kInvalid, {call, "n is 0", "1 to 64"}, with(all.data(), 0)},
        {"none, NULL", kInvalid, {call, "n is 0"}, with(nullptr, 0)},
        {"too many", kInvalid, {call, "n is 65", "1 to 64"}, with(many.data(), 65)},
        {"no output",
         kInvalid,
         {call, "out is NULL"},
         calling(ddp_group_round_robin, all.data(), 2, nullptr)},
        {"a NULL entry", kInvalid, {call, "groups[1] is NULL"}, with(missing, 2)},
        {"one twice",
         kInvalid,
         {call, "groups[2] is the same group as groups[0]"},
         with(repeated, 3)},
        {"nested", kInvalid, {call, "groups[1] is a round robin group itself"}, with(nested, 2)},
        {"part of another", kInvalid, {call, "groups[2] is part of another"}, with(taken, 3)},
    });
    ddp_group_free(two);
    expect_accepted(calling(ddp_group_round_robin, taken, 3, &used));
    ddp_group_free(used);
    for (auto* group : all) ddp_group_free(group);
}

TEST(BadGroup, RoundRobinOfOtherWorlds) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        ddp_group *alone = nullptr, *turned = nullptr;
        ASSERT_EQ(ddp_group_split(group, rank, 0, &alone, nullptr), DDP_OK);
        ASSERT_EQ(ddp_group_split(group, 0, -rank, &turned, nullptr), DDP_OK);
        ddp_group* const worlds[] = {group, alone};
        ddp_group* const ranks[] = {group, turned};
        Untouched<ddp_group*> out;
        const std::string mine = "rank " + std::to_string(rank) + " of 2";
        expect_refused({
            {"another world",
             kInvalid,
             {"groups[1] is rank 0 of 1", mine},
             calling(ddp_group_round_robin, worlds, 2, &out)},
            {"another rank",
             kInvalid,
             {"groups[1]", mine},
             calling(ddp_group_round_robin, ranks, 2, &out)},
        });
        EXPECT_EQ(ddp_barrier(group, nullptr, nullptr), DDP_OK);
        ddp_group_free(alone);
        ddp_group_free(turned);
    });
}

class BadCollective : public testing::Test {
protected:
    void SetUp() override {
        auto options = lone_options();
        ASSERT_EQ(ddp_group_create(&options, &group, nullptr), DDP_OK);
    }
    void TearDown() override { ddp_group_free(group); }

    ddp_group* group = nullptr;
    Untouched<ddp_work*> work;
    alignas(16) float x[4] = {1, 2, 3, 4}, y[4] = {5, 6, 7, 8};
};

TEST_F(BadCollective, Arguments) {
    expect_refused({
        {"allreduce: no recv",
         kInvalid,
         {"recv"},
         calling(ddp_allreduce, group, x, nullptr, 1, DDP_F32, DDP_SUM, &work)},
        {"allreduce: dtype 0",
         kInvalid,
         {"dtype 0"},
         calling(ddp_allreduce, group, x, y, 1, 0, DDP_SUM, &work)},
        {"allreduce: dtype 10",
         kInvalid,
         {"dtype 10"},
         calling(ddp_allreduce, group, x, y, 1, 10, DDP_SUM, &work)},
        {"allreduce: op 0",
         kInvalid,
         {"op 0"},
         calling(ddp_allreduce, group, x, y, 1, DDP_F32, 0, &work)},
        {"allreduce: op 6",
         kInvalid,
         {"op 6"},
         calling(ddp_allreduce, group, x, y, 1, DDP_F32, 6, &work)},
        {"allreduce: least complex",
         DDP_ERROR_UNSUPPORTED,
         {"op", "c64"},
         calling(ddp_allreduce, group, x, y, 1, DDP_C64, DDP_MIN, &work)},
        {"allreduce: largest complex",
         DDP_ERROR_UNSUPPORTED,
         {"op", "c128"},
         calling(ddp_allreduce, group, x, y, 1, DDP_C128, DDP_MAX, &work)},
        {"allreduce: count",
         kInvalid,
         {"count"},
         calling(ddp_allreduce, group, x, y, SIZE_MAX, DDP_F32, DDP_SUM, &work)},
        {"allreduce: count in bytes",
         kInvalid,
         {"count"},
         calling(ddp_allreduce, group, x, y, SIZE_MAX / 4, DDP_F32, DDP_SUM, &work)},
        {"broadcast: no buffer",
         kInvalid,
         {"buffer"},
         calling(ddp_broadcast, group, nullptr, 1, DDP_F32, 0, &work)},
        {"broadcast: root -1",
         kInvalid,
         {"root is -1"},
         calling(ddp_broadcast, group, x, 1, DDP_F32, -1, &work)},
        {"broadcast: root 1",
         kInvalid,
         {"root is 1"},
         calling(ddp_broadcast, group, x, 1, DDP_F32, 1, &work)},
        {"broadcast: dtype",
         kInvalid,
         {"dtype -1"},
         calling(ddp_broadcast, group, x, 1, -1, 0, &work)},
        {"allgather: no recv",
         kInvalid,
         {"recv"},
         calling(ddp_allgather, group, x, nullptr, 1, DDP_F32, &work)},
        {"allgather: count",
         kInvalid,
         {"count"},
         calling(ddp_allgather, group, x, y, SIZE_MAX / 8, DDP_F32, &work)},
        {"reduce_scatter: in place",
         kInvalid,
         {"send is NULL", "reduce_scatter"},
         calling(ddp_reduce_scatter, group, nullptr, y, 1, DDP_F32, DDP_SUM, &work)},
        {"reduce_scatter: no recv",
         kInvalid,
         {"recv"},
         calling(ddp_reduce_scatter, group, x, nullptr, 1, DDP_F32, DDP_SUM, &work)},
        {"reduce_scatter: op",
         kInvalid,
         {"op 77"},
         calling(ddp_reduce_scatter, group, x, y, 1, DDP_F32, 77, &work)},
        {"split: color",
         kInvalid,
         {"color is -2"},
         [&](ddp_error** e) {
             Untouched<ddp_group*> out;
             return ddp_group_split(group, -2, 0, &out, e);
         }},
        {"split: no output",
         kInvalid,
         {"out is NULL"},
         calling(ddp_group_split, group, 0, 0, nullptr)},
        {"store: no output", kInvalid, {"store is NULL"}, calling(ddp_group_store, group, nullptr)},
    });
    EXPECT_THAT(y, testing::ElementsAre(5, 6, 7, 8)) << "a refused collective wrote";
    EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK) << "a refused collective breaks nothing";
}

TEST_F(BadCollective, NothingOfNothingIsFine) {
    expect_accepted(calling(ddp_allreduce, group, nullptr, nullptr, 0, DDP_F32, DDP_SUM, nullptr));
    expect_accepted(calling(ddp_broadcast, group, nullptr, 0, DDP_F32, 0, nullptr));
    expect_accepted(calling(ddp_allgather, group, nullptr, nullptr, 0, DDP_F32, nullptr));
    expect_accepted(
        calling(ddp_reduce_scatter, group, nullptr, nullptr, 0, DDP_F32, DDP_SUM, nullptr));
    expect_accepted(calling(ddp_barrier, group, nullptr));
    ddp_group* none = group;
    expect_accepted(calling(ddp_group_split, group, -1, 0, &none));
    EXPECT_EQ(none, nullptr);
}

TEST_F(BadCollective, ABrokenGroupRefusesEverythingWithTheSameError) {
    ASSERT_EQ(ddp_group_abort(group, nullptr, nullptr), DDP_OK);
    const std::vector<std::string> named{"ddp_group_abort"};
    Untouched<ddp_group*> part;
    Untouched<ddp_context*> context;
    expect_refused({
        {"status", DDP_ERROR_ABORTED, named, calling(ddp_group_status, group)},
        {"allreduce", DDP_ERROR_ABORTED, named,
         calling(ddp_allreduce, group, x, y, 1, DDP_F32, DDP_SUM, &work)},
        {"barrier", DDP_ERROR_ABORTED, named, calling(ddp_barrier, group, &work)},
        {"split", DDP_ERROR_ABORTED, named, calling(ddp_group_split, group, 0, 0, &part)},
        {"context", DDP_ERROR_ABORTED, named,
         calling(ddp_context_create, group, nullptr, &context)},
    });
    expect_accepted(calling(ddp_group_abort, group, "again"));
}

TEST(BadGroup, ARootBeyondTheWorldIsRefusedOnEveryRank) {
    on_ranks(RankOptions{}, [](int, ddp_group* group) {
        float x = 0;
        expect_refused({{"root 2",
                         kInvalid,
                         {"root is 2", "0 to 1"},
                         calling(ddp_broadcast, group, &x, 1, DDP_F32, 2, nullptr)}});
        EXPECT_EQ(ddp_barrier(group, nullptr, nullptr), DDP_OK);
    });
}

class BadWork : public BadCollective {
protected:
    static ddp_status succeed(void*, ddp_work**, ddp_error**) { return DDP_OK; }
    static void count(void* counter) { ++*static_cast<int*>(counter); }
};

TEST_F(BadWork, Arguments) {
    ddp_work* mine = nullptr;
    ASSERT_EQ(ddp_work_create(1'000, &mine, nullptr), DDP_OK);
    Untouched<ddp_work*> out;
    int destroyed = 0;
    expect_refused({
        {"create: timeout", kInvalid, {"timeout_ms is -1"}, calling(ddp_work_create, -1, &out)},
        {"test: no output", kInvalid, {"done is NULL"}, calling(ddp_work_test, mine, nullptr)},
        {"wait: not at all",
         DDP_ERROR_TIMEOUT,
         {"not finished yet"},
         calling(ddp_work_wait, mine, -1)},
        {"wait: too short", DDP_ERROR_TIMEOUT, {"1 ms"}, calling(ddp_work_wait, mine, 1)},
        {"then: no function",
         kInvalid,
         {"fn is NULL"},
         calling(ddp_work_then, mine, nullptr, &destroyed, count, 0, &out)},
        {"then: no output",
         kInvalid,
         {"out is NULL"},
         calling(ddp_work_then, mine, succeed, &destroyed, count, 0, nullptr)},
        {"then: flags",
         DDP_ERROR_UNSUPPORTED,
         {"flags", "0x2"},
         calling(ddp_work_then, mine, succeed, &destroyed, count, 2, &out)},
    });
    EXPECT_EQ(destroyed, 0) << "user data changes hands on success only";
    expect_accepted(calling(ddp_work_complete, mine, DDP_OK, nullptr));
    expect_accepted(calling(ddp_work_wait, mine, -1));
    expect_refused({{"complete: twice",
                     DDP_ERROR_INVALID_STATE,
                     {"finished already"},
                     calling(ddp_work_complete, mine, DDP_OK, nullptr)}});
    ddp_work_free(mine);
}

TEST_F(BadWork, OnlyOnesOwnWorkCanBeCompleted) {
    ddp_work* barrier = nullptr;
    ASSERT_EQ(ddp_barrier(group, &barrier, nullptr), DDP_OK);
    expect_refused({{"complete",
                     DDP_ERROR_INVALID_STATE,
                     {"ddp_work_create"},
                     calling(ddp_work_complete, barrier, DDP_OK, nullptr)}});
    EXPECT_EQ(ddp_work_wait(barrier, 0, nullptr), DDP_OK);
    ddp_work_free(barrier);
}

TEST_F(BadWork, AStatusThatIsNoErrorCodeBecomesCallback) {
    for (ddp_status status : {1, DDP_ERROR_NONFINITE - 1, INT32_MIN}) {
        ddp_work* mine = nullptr;
        ASSERT_EQ(ddp_work_create(0, &mine, nullptr), DDP_OK);
        expect_accepted(calling(ddp_work_complete, mine, status, nullptr));
        EXPECT_EQ(ddp_work_wait(mine, 0, nullptr), DDP_ERROR_CALLBACK) << status;
        ddp_work_free(mine);
    }
}

}  // namespace bad_input_group_test
