// ddp_shard_save and ddp_shard_load: what some ranks have saved, others load, whole or not at all.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace shard_state_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

template <class Call>
std::string message_of(Call call) {
    return error_of(call).what();
}

// A folder that goes with the test.
struct Folder {
    fs::path path;
    Folder() {
        std::string name = testing::TempDir() + "shard_state_XXXXXX";
        path = mkdtemp(name.data());
    }
    ~Folder() { fs::remove_all(path); }
    std::string operator/(const std::string& name) const { return (path / name).string(); }
};

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
        names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

const std::vector<std::int64_t> kSizes = {1000, 3, 257, 40'000, 0, 1, 5000, 64, 9001, 17};
const std::vector<ddp_owner> kMixed = {DDP_OWNER_WHOLE, DDP_OWNER_ELEMENTS, DDP_OWNER_REPLICATED};

// Whole arrays: by key, then by parameter.
using State = std::map<std::string, std::map<ddp_param, std::vector<float>>>;

// A model with AdamW (Loshchilov and Hutter 2019) on this rank's pieces. All ranks have the same
// gradients: in worlds of any size the mean is the same but for rounding.
struct Trainer {
    Model model;
    std::vector<ddp_piece> pieces;
    std::vector<std::vector<float>> m, v;
    int step = 0;

    explicit Trainer(ddp_group* group, const std::vector<ddp_owner>& owners = {})
        : model(group, kSizes, true, options()) {
        for (int p = 0; p < model.count(); ++p) {
            auto& values = model.data[static_cast<std::size_t>(p)];
            for (std::size_t k = 0; k < values.size(); ++k)
                values[k] = 0.01f * static_cast<float>(k % 97);
            if (!owners.empty())
                model.context.set_owner(p, owners[static_cast<std::size_t>(p) % owners.size()]);
        }
        model.context.commit();
        pieces = model.context.pieces();
        for (const ddp_piece& piece : pieces) {
            m.emplace_back(piece.count);
            v.emplace_back(piece.count);
        }
    }
    static ddp_context_options options() {
        auto result = ddp::Context::defaults();
        result.flags = DDP_CONTEXT_SHARD;
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 4096;
        return result;
    }

    void train(int until) {
        for (; step < until; ++step) {
            for (int p = model.count(); p-- > 0;) {
                model.context.wait_value(p);
                for (std::size_t k = 0; k < model.size(p); ++k)
                    model.grad(p)[k] = model.data[static_cast<std::size_t>(p)][k] * 0.37f +
                                       std::sin(static_cast<float>(k) + static_cast<float>(step));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (std::size_t i = 0; i < pieces.size(); ++i) update(i);
            model.context.publish();
        }
        for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
    }

    void update(std::size_t i) {
        constexpr float kRate = 0.01f, kBeta1 = 0.9f, kBeta2 = 0.999f, kDecay = 0.1f;
        const float c1 = 1 - std::pow(kBeta1, static_cast<float>(step + 1));
        const float c2 = 1 - std::pow(kBeta2, static_cast<float>(step + 1));
        auto* value = static_cast<float*>(pieces[i].value);
        const auto* gradient = static_cast<const float*>(pieces[i].gradient);
        for (std::size_t k = 0; k < m[i].size(); ++k) {
            m[i][k] = kBeta1 * m[i][k] + (1 - kBeta1) * gradient[k];
            v[i][k] = kBeta2 * v[i][k] + (1 - kBeta2) * gradient[k] * gradient[k];
            value[k] -= kRate * kDecay * value[k];
            value[k] -= kRate * (m[i][k] / c1) / (std::sqrt(v[i][k] / c2) + 1e-8f);
        }
    }

    // body: gets the key, the piece and the array.
    void each(const std::function<void(const char*, const ddp_piece&, float*)>& body) {
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            body("value", pieces[i], static_cast<float*>(pieces[i].value));
            body("m", pieces[i], m[i].data());
            body("v", pieces[i], v[i].data());
        }
    }
    void add() {
        each([&](const char* key, const ddp_piece& piece, float* data) {
            model.context.add_shard_array(key, piece.param, piece.first, piece.count, data,
                                          piece.replicated != 0);
        });
    }
    void save(const std::string& folder) {
        add();
        model.context.save_shards(folder, std::to_string(step));
    }
    void load(const std::string& folder) {
        add();
        step = std::stoi(model.context.load_shards(folder));
    }
    void copy_to(State& state) {
        each([&](const char* key, const ddp_piece& piece, float* data) {
            std::copy(data, data + piece.count, state[key][piece.param].begin() + piece.first);
        });
    }
    void copy_from(State& state) {
        each([&](const char* key, const ddp_piece& piece, float* data) {
            std::copy_n(state[key][piece.param].begin() + piece.first, piece.count, data);
        });
        model.context.publish();
    }
};

State empty_state() {
    State state;
    for (const char* key : {"value", "m", "v"})
        for (std::size_t p = 0; p < kSizes.size(); ++p)
            state[key][static_cast<ddp_param>(p)].assign(static_cast<std::size_t>(kSizes[p]), -1);
    return state;
}

RankOptions deterministic(int world) {
    RankOptions options(world);
    options.flags = DDP_GROUP_DETERMINISTIC;
    return options;
}

// The pieces of all ranks after `body`, together.
State state_after(int world, const std::vector<ddp_owner>& owners,
                  const std::function<void(Trainer&)>& body) {
    State state = empty_state();
    on_ranks(deterministic(world), [&](int, ddp_group* group) {
        Trainer trainer(group, owners);
        body(trainer);
        trainer.copy_to(state);
    });
    return state;
}

class ShardState : public testing::TestWithParam<int> {};

TEST_P(ShardState, SavedByFourRanks) {
    for (const auto& owners : {std::vector<ddp_owner>{}, kMixed}) {
        const Folder folder;
        const State saved = state_after(4, owners, [&](Trainer& trainer) {
            trainer.train(3);
            trainer.save(folder / "save");
        });
        const State loaded = state_after(GetParam(), owners, [&](Trainer& trainer) {
            trainer.load(folder / "save");
            for (int p = 0; p < trainer.model.count(); ++p)
                EXPECT_EQ(trainer.model.data[static_cast<std::size_t>(p)], saved.at("value").at(p));
        });
        EXPECT_EQ(loaded, saved);

        const auto go_on = [](Trainer& trainer) { trainer.train(7); };
        const State got = state_after(GetParam(), owners, [&](Trainer& trainer) {
            trainer.load(folder / "save");
            go_on(trainer);
        });
        State from = saved;
        EXPECT_EQ(got, state_after(GetParam(), owners, [&](Trainer& trainer) {
                      trainer.step = 3;
                      trainer.copy_from(from);
                      go_on(trainer);
                  }));
        const State want = state_after(4, owners, go_on);
        if (GetParam() == 4) {
            EXPECT_EQ(got, want);
        }
        for (const auto& [key, params] : want)
            for (const auto& [param, values] : params)
                for (std::size_t k = 0; k < values.size(); ++k)
                    ASSERT_NEAR(got.at(key).at(param)[k], values[k], 1e-5) << key << param << k;
    }
}

INSTANTIATE_TEST_SUITE_P(LoadedBy, ShardState, testing::Values(1, 3, 4, 5));

TEST(ShardSave, OneRankGetsWholeParameters) {
    const Folder folder;
    const State saved = state_after(4, kMixed, [&](Trainer& trainer) {
        trainer.train(2);
        trainer.save(folder / "save");
    });
    on_ranks(3, [&](int rank, ddp_group* group) {
        Trainer trainer(group);
        State whole = empty_state();
        for (auto& [key, params] : whole)
            for (auto& [param, values] : params)
                if (rank == 1)
                    trainer.model.context.add_shard_array(
                        key, param, 0, static_cast<std::int64_t>(values.size()), values.data());
        EXPECT_EQ(trainer.model.context.load_shards(folder / "save"), "2");
        EXPECT_EQ(whole == saved, rank == 1);
    });
}

// An optimizer of libddp's own: its states are arrays of pieces, and "step" is one number.
TEST(ShardSave, StatesOfAnOptimizer) {
    const Folder folder;
    std::map<std::string, std::map<ddp_param, std::vector<float>>> moments[2];
    for (const int world : {3, 2}) {
        auto& found = moments[world == 2];
        for (const char* name : {"exp_avg", "exp_avg_sq"})
            for (std::size_t p = 0; p < kSizes.size(); ++p)
                found[name][static_cast<ddp_param>(p)].resize(static_cast<std::size_t>(kSizes[p]));
        on_ranks(deterministic(world), [&](int, ddp_group* group) {
            Trainer trainer(group, kMixed);
            ddp_context* context = trainer.model.context.get();
            ddp_optimizer* optimizer = nullptr;
            ASSERT_EQ(ddp_optimizer_create(context, "adamw", "lr=1e-3", &optimizer, nullptr), 0);
            for (int step = 0; step < 2 && world == 3; ++step) {
                for (int p = trainer.model.count(); p-- > 0;) {
                    trainer.model.context.wait_value(p);
                    trainer.model.fill(p, static_cast<float>(p + step));
                    trainer.model.context.grad_ready(p);
                }
                trainer.model.context.finalize();
                ASSERT_EQ(ddp_optimizer_step(optimizer, 1, nullptr), 0);
                trainer.model.context.publish();
            }
            std::vector<ddp_optimizer_state> states(
                static_cast<std::size_t>(ddp_optimizer_state_count(optimizer)));
            for (std::size_t i = 0; i < states.size(); ++i) {
                ddp_optimizer_state& state = states[i];
                state.struct_size = sizeof state;
                ASSERT_EQ(ddp_optimizer_state_get(optimizer, static_cast<std::int32_t>(i), &state,
                                                  nullptr),
                          0);
                bool replicated = std::strcmp(state.name, "step") == 0;
                for (const ddp_piece& piece : trainer.pieces)
                    replicated |= piece.param == state.param && piece.replicated != 0;
                ASSERT_EQ(
                    ddp_shard_array(context, state.name, state.param, state.first, state.count,
                                    state.dtype, state.data, replicated, nullptr),
                    0);
            }
            if (world == 3)
                trainer.model.context.save_shards(folder / "save");
            else
                trainer.model.context.load_shards(folder / "save");
            for (const ddp_optimizer_state& state : states)
                if (std::strcmp(state.name, "step") == 0)
                    EXPECT_EQ(*static_cast<std::int64_t*>(state.data), 2);
                else
                    std::copy_n(static_cast<float*>(state.data), state.count,
                                found[state.name][state.param].begin() + state.first);
            ddp_optimizer_free(optimizer);
        });
    }
    EXPECT_EQ(moments[0], moments[1]);
    EXPECT_NE(moments[0]["exp_avg"][3][39'999], 0);
}

// One parameter `w` of `count` elements, which each rank has a part of, under the key "m".
struct Part {
    BorrowedGroup group;
    ddp::Context context;
    std::vector<float> all, value;

    explicit Part(ddp_group* borrowed, const std::vector<std::int64_t>& shape = {100},
                  const std::string& name = "w")
        : group(borrowed), context(group), value(static_cast<std::size_t>(shape[0] * 100)) {
        context.add_param<float>(name, shape, value.data());
        context.commit();
        for (std::int64_t i = 0; i < 100; ++i) all.push_back(static_cast<float>(i));
    }
    void save(const std::string& folder, const std::string& note = "first") {
        const int world = group.world_size(), rank = group.rank();
        const std::int64_t first = 100 * rank / world, end = 100 * (rank + 1) / world;
        context.add_shard_array("m", 0, first, end - first, all.data() + first);
        context.save_shards(folder, note);
    }
    std::string load(const std::string& folder) {
        all.assign(100, -1);
        context.add_shard_array("m", 0, 0, 100, all.data());
        return context.load_shards(folder);
    }
};

void save_parts(int world, const std::string& folder, const std::string& note = "first") {
    on_ranks(world, [&](int, ddp_group* group) { Part(group).save(folder, note); });
}
void expect_saved(const std::string& folder, const std::string& note = "first") {
    on_ranks(2, [&](int, ddp_group* group) {
        Part part(group);
        EXPECT_EQ(part.load(folder), note);
        for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(part.all[i], static_cast<float>(i));
    });
}
std::string load_error(const std::string& folder) {
    std::string message;
    on_ranks(1, [&](int, ddp_group* group) {
        Part part(group);
        message = message_of([&] { part.load(folder); });
        EXPECT_TRUE(part.all == std::vector<float>(100, -1)) << message;
    });
    return message;
}

// Rank 0 owns nothing of the parameter.
TEST(ShardSave, OwnersOfAParameterHaveTheSameNumber) {
    const Folder folder;
    on_ranks(3, [&](int rank, ddp_group* group) {
        Part part(group);
        std::vector<double> step = {7};
        if (rank > 0) part.context.add_shard_array("step", 0, 0, 1, step.data(), true);
        part.context.save_shards(folder / "save");
        std::vector<double> loaded = {0};
        part.context.add_shard_array("step", 0, 0, 1, loaded.data(), true);
        part.context.load_shards(folder / "save");
        EXPECT_EQ(loaded, step);

        step[0] += rank;
        part.context.add_shard_array("step", 0, 0, 1, step.data(), true);
        EXPECT_THAT(message_of([&] { part.context.save_shards(folder / "save"); }),
                    HasSubstr("rank 1: 'step' of 'w' is replicated, and has other bits on rank 0"));
    });
}

TEST(ShardSave, AnotherSaveTakesThePlaceOfTheFirst) {
    const Folder folder;
    save_parts(3, folder / "save", "first");
    save_parts(2, folder / "save", "second");
    const auto names = names_in(folder / "save");
    ASSERT_EQ(names.size(), 3u);
    EXPECT_THAT(names[0], testing::MatchesRegex("shard-00000-of-00002-[0-9a-f]*.safetensors"));
    EXPECT_EQ(names[2], "shards.json");
    expect_saved(folder / "save", "second");
}

TEST(ShardSave, MistakesAreErrorsOnAllRanksAndKeepTheSaveBefore) {
    const Folder folder;
    const std::string save = folder / "save";
    save_parts(2, save);
    const auto names = names_in(save);
    on_ranks(2, [&](int rank, ddp_group* group) {
        Part part(group);
        const auto expect = [&](ddp_status status, const char* text) {
            const ddp::Error error = error_of([&] { part.context.save_shards(save, "note"); });
            EXPECT_EQ(error.status(), status) << error.what();
            EXPECT_THAT(error.what(), HasSubstr(text));
        };
        part.context.add_shard_array("m", 0, 0, 100, part.all.data());
        expect(DDP_ERROR_MISMATCH, "element 0 of 'm' of 'w' was saved by rank 0 and by rank 1");
        part.context.add_shard_array("m", 0, rank * 60, 40, part.all.data());
        expect(DDP_ERROR_MISMATCH, "elements 40 to 59 of 'm' of 'w' were saved by no rank");
        if (rank == 0) part.context.add_shard_array("m", 0, 0, 40, part.all.data());
        std::vector<double> wide(10);
        if (rank == 1) part.context.add_shard_array("m", 0, 40, 10, wide.data());
        expect(DDP_ERROR_MISMATCH, "f32 on rank 0 and f64 on rank 1");
        EXPECT_THAT(message_of([&] { part.save(save, rank == 1 ? "a" : "b"); }),
                    HasSubstr("rank 1: note is 'a', and another one on rank 0"));
        EXPECT_THAT(message_of([&] { part.save(save, "\xff"); }), HasSubstr("UTF-8"));
        EXPECT_THAT(message_of([&] { part.save(save + "/no/folder"); }),
                    HasSubstr("No such file or directory"));
        EXPECT_THAT(message_of([&] { part.save("/proc/self/nothing"); }), HasSubstr("cannot make"));
    });
    EXPECT_EQ(names_in(save), names);
    expect_saved(save);
}

TEST(ShardSave, ADiskThatIsFullKeepsTheSaveBefore) {
    const Folder folder;
    save_parts(2, folder / "save");
    const auto names = names_in(folder / "save");
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 1 << 20;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    on_ranks(2, [&](int rank, ddp_group* group) {
        Part part(group, {10'000, 100});
        std::vector<float> large(rank == 1 ? 1'000'000 : 1);
        part.context.add_shard_array("m" + std::to_string(rank), 0, 0,
                                     static_cast<std::int64_t>(large.size()), large.data());
        const ddp::Error error =
            error_of([&] { part.context.save_shards(folder / "save", "second"); });
        EXPECT_EQ(error.status(), DDP_ERROR_IO);
        EXPECT_EQ(error.rank(), 1);
        EXPECT_THAT(error.what(), HasSubstr("File too large"));
    });
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(names_in(folder / "save"), names);
    expect_saved(folder / "save");
}

TEST(ShardSave, MistakesInArraysAreNamed) {
    on_ranks(1, [](int, ddp_group* group) {
        Part part(group);
        std::vector<float> data(100);
        const auto add = [&](const char* key, ddp_param param, std::int64_t first,
                             std::int64_t count, float* memory) {
            return message_of(
                [&] { part.context.add_shard_array(key, param, first, count, memory); });
        };
        EXPECT_THAT(add("a/b", 0, 0, 1, data.data()), HasSubstr("no '/' or '@'"));
        EXPECT_THAT(add("", 0, 0, 1, data.data()), HasSubstr("key is ''"));
        EXPECT_THAT(add("\xff", 0, 0, 1, data.data()), HasSubstr("UTF-8"));
        EXPECT_THAT(add("m", 1, 0, 1, data.data()), HasSubstr("parameter 1 does not exist"));
        EXPECT_THAT(add("m", 0, 1, 100, data.data()), HasSubstr("100 elements from 1 of 'w'"));
        EXPECT_THAT(add("m", 0, INT64_MAX, 1, data.data()), HasSubstr("which has 100"));
        EXPECT_THAT(add("m", 0, 0, -1, data.data()), HasSubstr("-1 elements"));
        EXPECT_THAT(add("m", 0, 0, 1, nullptr), HasSubstr("data is NULL"));
        part.context.add_shard_array("m", 0, 0, 10, data.data());
        part.context.add_shard_array("m", 0, 10, 0, data.data());
        EXPECT_THAT(add("m", 0, 9, 5, data.data()),
                    HasSubstr("'m' of 'w' was named with element 9 already"));
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_shard_array(part.context.get(), "m", 0, 0, 1, 77, data.data(), 0, &error),
                  DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(take_message(error), HasSubstr("dtype 77 is unknown"));
        EXPECT_THAT(message_of([&] { part.context.save_shards(""); }),
                    HasSubstr("folder is empty"));
    });
}

TEST(ShardLoad, TheSaveMustBeOfTheSameModel) {
    const Folder folder;
    const std::string save = folder / "save";
    save_parts(2, save);
    on_ranks(2, [&](int rank, ddp_group* group) {
        Part other_name(group, {100}, "x"), other_shape(group, {50}), same(group);
        EXPECT_THAT(message_of([&] { other_name.load(save); }),
                    HasSubstr("parameter 'x' is not in the save; it has 'w'"));
        const auto load = [&](Part& part, const char* key, auto* data, std::int64_t count) {
            if (rank == 1) part.context.add_shard_array(key, 0, 0, count, data);
            const ddp::Error error = error_of([&] { part.context.load_shards(save); });
            EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH);
            EXPECT_EQ(error.rank(), 1);
            EXPECT_EQ(error.param(), 0);
            return std::string(error.what());
        };
        EXPECT_THAT(load(other_shape, "m", other_shape.all.data(), 50),
                    HasSubstr("rank 1: parameter 'w' was saved with the shape [100] and has [50]"));
        EXPECT_THAT(load(same, "v", same.all.data(), 100),
                    HasSubstr("'w' was saved without 'v'; it has 'm'"));
        std::vector<double> doubles(100);
        EXPECT_THAT(load(same, "m", doubles.data(), 100),
                    HasSubstr("'m' of 'w' was saved as f32; the array is f64"));
        EXPECT_EQ(same.load(save), "first");
    });
    // Some state has fewer elements than its parameter.
    on_ranks(1, [&](int, ddp_group* group) {
        Part part(group);
        part.context.add_shard_array("rows", 0, 0, 10, part.all.data());
        part.context.save_shards(save);
        part.context.add_shard_array("rows", 0, 5, 10, part.all.data());
        EXPECT_THAT(message_of([&] { part.context.load_shards(save); }),
                    HasSubstr("elements 10 to 14 of 'rows' of 'w' are missing: saved are 0 to 9"));
    });
}

std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
}
// With `to` in the place of `from`, which is as long or followed by spaces.
std::string replaced(std::string content, const std::string& from, const std::string& to) {
    const auto at = content.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return content.replace(at, from.size(), to);
}

TEST(ShardLoad, DamagedFilesAreNamed) {
    const Folder folder;
    const std::string save = folder / "save";
    save_parts(2, save);
    std::string path, other;
    for (const std::string& name : names_in(save)) {
        if (name.starts_with("shard-00000")) other = save + "/" + name;
        if (name.starts_with("shard-00001")) path = save + "/" + name;
    }
    const std::string good = content_of(path);
    std::uint64_t header = 0;
    std::memcpy(&header, good.data(), 8);
    const auto with_header_of = [&](std::uint64_t bytes) {
        std::string content = good;
        std::memcpy(content.data(), &bytes, 8);
        return content;
    };
    struct Damage {
        std::string content;
        const char* text;
    };
    std::string flipped = good;
    flipped.back() ^= 1;
    const Damage table[] = {
        {"", "is cut short"},
        {good.substr(0, 7), "is cut short"},
        {good.substr(0, 50), "is cut short"},
        {good.substr(0, good.size() - 1), "cut short?"},
        {good + "x", "has 201 bytes of elements"},
        {flipped, "do not have the checksum"},
        {with_header_of(UINT64_MAX), "no safetensors file"},
        {with_header_of(good.size()), "is cut short"},
        {with_header_of(header - 8), "no JSON object"},
        {replaced(good, "{", "["), "no JSON object"},
        {replaced(good, "[0,200]", "[0,204]"), "not within the 200 bytes"},
        {replaced(good, "[0,200]", "[4,200]"), "50 elements in 196 bytes"},
        {replaced(good, "[0,200]", "[9,2e1]"), "no list of sizes"},
        {replaced(good, "\"shape\":[50]", "\"dtype\":[50]"), "a key twice"},
        {replaced(good, "\"first\"", "\"fir\xff\x22\""), "UTF-8"},
        {replaced(good, "w/m@50", "w/m@99"), "50 elements of a parameter of 100"},
        {replaced(good, "w/m@50", "w/m@-1"), "'-1' is no first element"},
        {replaced(good, "w/m@50", "w-m@50"), "no PARAMETER/KEY@FIRST"},
        {replaced(good, "w/m@50", "w/m@49"), "was saved by rank 0 and by rank 1"},
        {replaced(good, "w/m@50", "v/m@50"), "has no shape"},
        {replaced(good, "F32", "F33"), "a dtype or a shape that libddp does not write"},
        {replaced(good, "libddp-shard\"", "libddp-shark\""), "does not say 'libddp-shard'"},
        {replaced(good, "\"version\":\"1\"", "\"version\":\"9\""), "of version '9'"},
        {replaced(good, "\"rank\":\"1\"", "\"rank\":\"0\""), "says that it is of rank 0"},
        {content_of(other), "says that it is of rank 0"},
    };
    for (const Damage& damage : table) {
        write(path, damage.content);
        std::string message;
        on_ranks(1, [&](int, ddp_group* group) {
            Part part(group);
            message = message_of([&] { part.load(save); });
        });
        EXPECT_THAT(message, HasSubstr(damage.text));
    }
    fs::remove(path);
    EXPECT_THAT(load_error(save), HasSubstr("cannot open " + path));
    // A file of another save, under this one's name.
    save_parts(2, folder / "later");
    for (const std::string& name : names_in(folder / "later"))
        if (name.starts_with("shard-00001")) fs::copy(folder / "later/" + name, path);
    EXPECT_THAT(load_error(save), HasSubstr("says that it is of rank 1 of 2 in save"));
    write(path, good);
    expect_saved(save);

    const std::string index = save + "/shards.json";
    for (const char* text : {"", "[]", "{\"format\":1}", "{\"format\":\"libddp-shards-1\"}",
                             "{\"format\":\"libddp-shards-1\",\"save\":\"../../x\",\"world\":2}"}) {
        write(index, text);
        EXPECT_THAT(load_error(save), HasSubstr("shards.json is "));
    }
    fs::remove(index);
    EXPECT_THAT(load_error(save), HasSubstr("holds no complete save"));
    EXPECT_THAT(load_error(save), HasSubstr("there are: shard-00000-of-00002-"));
    EXPECT_THAT(load_error(folder / "nothing"), HasSubstr("holds no complete save"));
}

// Runs a rank in a process of its own, in which nothing of the test's process is left.
pid_t fork_rank(int rank, const std::string& store, const std::function<void(ddp_group*)>& body) {
    const pid_t child = fork();
    if (child != 0) return child;
    alarm(100);
    const RankOptions options(4, "tcp");
    const ddp_group_options o = group_options(options, rank, store.c_str());
    ddp_group* group = nullptr;
    if (ddp_group_create(&o, &group, nullptr) != DDP_OK) _exit(2);
    body(group);
    _exit(0);
}

// Kills this process when it is read beyond its middle.
float* deadly_memory(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(static_cast<char*>(memory) + bytes / 2, bytes / 2, PROT_NONE);
    signal(SIGSEGV, [](int) { kill(getpid(), SIGKILL); });
    return static_cast<float*>(memory);
}

TEST(ShardSave, ARankThatIsKilledWhileItSavesLeavesTheSaveBefore) {
    const Folder folder;
    for (const std::string& save : {folder / "before", folder / "new"}) {
        if (save == folder / "before") save_parts(3, save);
        std::vector<pid_t> children;
        for (int rank = 0; rank < 4; ++rank)
            children.push_back(fork_rank(rank, "file://" + save + ".store", [&](ddp_group* group) {
                constexpr std::int64_t kElements = 100 << 16;
                Part part(group, {kElements / 100, 100});
                std::vector<float> fine(rank == 2 ? 0 : kElements);
                float* data = rank == 2 ? deadly_memory(kElements * 4) : fine.data();
                part.context.add_shard_array("rank" + std::to_string(rank), 0, 0, kElements, data);
                try {
                    part.context.save_shards(save, "second");
                } catch (const ddp::Error& error) {
                    _exit(error.status() == DDP_ERROR_RANK_FAILED && error.rank() == 2 ? 3 : 4);
                }
            }));
        for (int rank = 0; rank < 4; ++rank) {
            int status = 0;
            ASSERT_EQ(waitpid(children[static_cast<std::size_t>(rank)], &status, 0),
                      children[static_cast<std::size_t>(rank)]);
            if (rank == 2)
                EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            else
                EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << WEXITSTATUS(status);
        }
    }
    EXPECT_THAT(load_error(folder / "new"),
                HasSubstr("Of a save that did not come to its end there are: shard-0000"));
    expect_saved(folder / "before");
    const auto left = names_in(folder / "before").size();
    EXPECT_GT(left, 4u);
    save_parts(3, folder / "before", "third");
    EXPECT_EQ(names_in(folder / "before").size(), 4u);
    expect_saved(folder / "before", "third");
}

}  // namespace shard_state_test
