// DDP_GROUP_OR_ALONE: joins where a launcher started the process, and is alone where nobody did.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "capi/bad_input.h"
#include "ddp/ddp.hpp"
#include "support/ranks.h"

extern char** environ;

namespace alone_test {

using Variables = std::map<std::string, std::string>;

// The environment of the process has these variables of launchers, and no others. The environment
// has no lock: no group of an earlier test is alive.
class OrAlone : public testing::Test {
protected:
    static void set(const Variables& variables) {
        static const char* const prefixes[] = {
            "DDP_",  "RANK",   "WORLD_SIZE",           "LOCAL_",       "MASTER_", "OMPI_", "PMI_",
            "PMIX_", "SLURM_", "JOB_COMPLETION_INDEX", "TORCHELASTIC_"};
        std::vector<std::string> names;
        for (char** entry = environ; *entry; ++entry)
            names.emplace_back(*entry, std::strcspn(*entry, "="));
        for (const auto& name : names)
            for (const char* prefix : prefixes)
                if (name.rfind(prefix, 0) == 0) unsetenv(name.c_str());
        for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    }
    static ddp_group_options options() {
        ddp_group_options made;
        ddp_group_options_init(&made);
        made.flags = DDP_GROUP_OR_ALONE;
        made.timeout_ms = 10'000;
        return made;
    }
};

// The text that a context on this group writes to stderr.
std::string said_of_context(ddp_group* group) {
    ddp_context* context = nullptr;
    testing::internal::CaptureStderr();
    expect_accepted(calling(ddp_context_create, group, nullptr, &context));
    ddp_context_free(context);
    return testing::internal::GetCapturedStderr();
}

TEST_F(OrAlone, AContextOnAGroupOfOneRankWithinALargerJobSaysSoOnce) {
    ddp_group_options made;
    ddp_group_options_init(&made);
    made.rank = 0;
    made.world_size = 1;
    const auto said_on_new_group = [&](const Variables& variables) {
        set(variables);
        ddp_group* group = nullptr;
        expect_accepted(calling(ddp_group_create, &made, &group));
        const std::string said = said_of_context(group);
        ddp_group* part = nullptr;
        expect_accepted(calling(ddp_group_split, group, 0, 0, &part));
        EXPECT_EQ(said_of_context(part), "");
        ddp_group_free(part);
        ddp_group_free(group);
        return said;
    };
    EXPECT_EQ(said_on_new_group({}), "");
    EXPECT_EQ(said_on_new_group({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "");
    const Variables job{
        {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
    const std::string said = said_on_new_group(job);
    EXPECT_NE(said.find("on a group of 1 rank, and the launcher's job has 4: nothing is averaged"),
              std::string::npos)
        << said;
    EXPECT_EQ(said_on_new_group(job), "");
}

TEST_F(OrAlone, IsAloneWithoutALauncher) {
    set({});
    const auto given = options();
    ddp_group* group = nullptr;
    expect_accepted(calling(ddp_group_create, &given, &group));
    EXPECT_EQ(ddp_group_rank(group), 0);
    EXPECT_EQ(ddp_group_world_size(group), 1);
    float value = 3;
    EXPECT_EQ(ddp_allreduce(group, nullptr, &value, 1, DDP_F32, DDP_SUM, nullptr, nullptr), DDP_OK);
    EXPECT_EQ(value, 3);
    ddp_store* store = nullptr;  // there is one all the same
    expect_accepted(calling(ddp_group_store, group, &store));
    EXPECT_EQ(ddp_store_set(store, "key", "value", 5, nullptr), DDP_OK);
    ddp_store_free(store);
    ddp_group* half = nullptr;
    expect_accepted(calling(ddp_group_split, group, 0, 0, &half));
    ddp_group_free(half);
    ddp_group_free(group);
    EXPECT_EQ(ddp::Group::or_alone().world_size(), 1);

    ddp_group* none = nullptr;
    expect_refused({{"without the flag",
                     DDP_ERROR_NOT_FOUND,
                     {"RANK", "ddprun"},
                     calling(ddp_group_create, static_cast<ddp_group_options*>(nullptr), &none)}});
}

// Shells of batch systems have variables of the job, but no rank.
TEST_F(OrAlone, IsAloneInTheShellOfAJob) {
    set({{"SLURM_JOB_ID", "77"},
         {"SLURM_NTASKS", "4"},
         {"SLURM_JOB_NODELIST", "node[1-2]"},
         {"RANK", ""}});
    EXPECT_EQ(ddp::Group::or_alone().world_size(), 1);
}

TEST_F(OrAlone, IsNotAloneWhereVariablesAreIncompleteOrMalformed) {
    struct {
        Variables variables;
        std::vector<std::string> words;
    } const cases[] = {
        {{{"RANK", "0"}}, {"RANK is set", "WORLD_SIZE is not"}},
        {{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set", "RANK is not"}},
        {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK", "one"}},
        {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK", "0 to 1"}},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"MASTER_ADDR"}},
        {{{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}},
         {"MASTER_ADDR is set", "rank", "RANK and WORLD_SIZE"}},
        {{{"DDP_STORE", "tcp://localhost:29500"}}, {"DDP_STORE is set", "rank"}},
        {{{"LOCAL_RANK", "1"}}, {"LOCAL_RANK is set", "rank"}},
        {{{"OMPI_COMM_WORLD_SIZE", "4"}}, {"OMPI_COMM_WORLD_SIZE is set", "rank"}},
    };
    for (const auto& each : cases) {
        set(each.variables);
        const auto given = options();
        Untouched<ddp_group*> group;
        expect_refused({{each.variables.begin()->first.c_str(), DDP_ERROR_INVALID_ARGUMENT,
                         each.words, calling(ddp_group_create, &given, &group)}});
    }
}

// A caller that says where ranks meet does not want to be alone.
TEST_F(OrAlone, HasNoEffectWhereTheCallerSaysMore) {
    set({});
    auto with_world = options(), with_rank = options(), with_method = options();
    with_world.world_size = 2;
    with_rank.rank = 0;
    with_method.init_method = "tcp://127.0.0.1:1";
    for (const auto* given : {&with_world, &with_rank, &with_method}) {
        Untouched<ddp_group*> group;
        expect_refused(
            {{"given", DDP_ERROR_NOT_FOUND, {"RANK"}, calling(ddp_group_create, given, &group)}});
    }
}

// It is not a property of the group, nor is DDP_GROUP_INSECURE: ranks that have them meet those
// that do not, and what is made of the group works.
TEST_F(OrAlone, MayDifferBetweenRanks) {
    set({});
    for (const char* backend : {"tcp", "shm"}) {
        const RankOptions ranks(2, backend);
        std::string path = testing::TempDir() + "or_alone_" + backend + std::to_string(getpid());
        const std::string uri = "file://" + path;
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 2; ++rank)
            threads.emplace_back([&, rank] {
                auto given = group_options(ranks, rank, uri.c_str());
                if (rank == 0) given.flags |= DDP_GROUP_OR_ALONE | DDP_GROUP_INSECURE;
                ddp::Group group(given);
                EXPECT_EQ(group.world_size(), 2);
                EXPECT_EQ(group.split(0).world_size(), 2);
            });
        for (auto& thread : threads) thread.join();
    }
}

}  // namespace alone_test
