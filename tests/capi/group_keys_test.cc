// Keys that groups leave in the store: none, when all their ranks have let go of them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.h"
#include "support/ranks.h"

namespace group_keys_test {
namespace {

constexpr int kWorld = 3;

ddp_store* open(const std::string& uri, bool server) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = uri.c_str();
    options.is_server = server ? 1 : 0;
    ddp_store* store = nullptr;
    ddp_error* error = nullptr;
    if (ddp_store_create(&options, &store, &error) != DDP_OK) ADD_FAILURE() << take_message(error);
    return store;
}

std::int64_t keys_in(ddp_store* store) {
    void* keys = nullptr;
    std::size_t size = 0;
    EXPECT_EQ(ddp_store_list_keys(store, "", &keys, &size, nullptr), DDP_OK);
    const auto* const text = static_cast<const char*>(keys);
    const std::int64_t count = std::count(text, text + size, '\0');
    ddp_free(keys);
    return count;
}

// A rank that makes groups, splits them and frees them, the parent before the child in every second
// round.
void come_and_go(int rank, const std::string& uri) {
    ddp_store* store = open(uri, false);
    for (int round = 0; round < 6; ++round) {
        const RankOptions how(kWorld, "tcp");
        ddp_group_options options = group_options(how, rank, nullptr);
        options.store = store;
        ddp_group *group = nullptr, *part = nullptr;
        ddp_error* error = nullptr;
        if (ddp_group_create(&options, &group, &error) != DDP_OK) {
            ADD_FAILURE() << take_message(error);
            break;
        }
        EXPECT_EQ(ddp_group_split(group, 0, 0, &part, nullptr), DDP_OK);
        if (round % 2 == 0) ddp_group_free(group);
        float sum = 1;
        EXPECT_EQ(ddp_allreduce(part, nullptr, &sum, 1, DDP_F32, DDP_SUM, nullptr, nullptr),
                  DDP_OK);
        EXPECT_EQ(sum, kWorld);
        ddp_group_free(part);
        if (round % 2 != 0) ddp_group_free(group);
    }
    ddp_store_free(store);
}

void expect_no_keys(ddp_store* store, const std::string& uri) {
    ASSERT_NE(store, nullptr);
    const std::int64_t before = keys_in(store);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kWorld; ++rank) ranks.emplace_back(come_and_go, rank, uri);
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(keys_in(store), before);
    ddp_store_free(store);
}

TEST(GroupKeys, GoWhenAllRanksHaveLetGoOfTheGroup) {
    ddp_store* store = open("tcp://127.0.0.1:0", true);
    expect_no_keys(store, "tcp://127.0.0.1:" + std::to_string(ddp_store_port(store)));
    const auto path =
        std::filesystem::temp_directory_path() / ("ddp-group-keys-" + std::to_string(getpid()));
    const std::string uri = "file://" + path.string();
    expect_no_keys(open(uri, false), uri);
}

std::vector<ddp_group*> make_on_all_ranks(ddp_store* store, const char* name) {
    std::vector<ddp_group*> groups(kWorld);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kWorld; ++rank)
        ranks.emplace_back([&, rank] {
            const RankOptions how(kWorld, "tcp");
            ddp_group_options options = group_options(how, rank, nullptr);
            options.store = store;
            options.group_name = name;
            ddp_error* error = nullptr;
            if (ddp_group_create(&options, &groups[static_cast<std::size_t>(rank)], &error) !=
                DDP_OK)
                ADD_FAILURE() << take_message(error);
        });
    for (std::thread& rank : ranks) rank.join();
    return groups;
}

TEST(GroupKeys, OfAGroupDoNotLieAmongThoseOfAnotherWhateverTheirNames) {
    ddp_store* store = open("tcp://127.0.0.1:0", true);
    ASSERT_NE(store, nullptr);
    // In the store, a name and the number of its first group: a group of this name must not be
    // among what group "a" removes.
    const auto stays = make_on_all_ranks(store, "a/0.1/b");
    const std::int64_t before = keys_in(store);
    for (ddp_group* group : make_on_all_ranks(store, "a")) ddp_group_free(group);
    EXPECT_EQ(keys_in(store), before);
    for (ddp_group* group : stays) ddp_group_free(group);
    EXPECT_EQ(keys_in(store), 0);
    ddp_store_free(store);
}

}  // namespace
}  // namespace group_keys_test
