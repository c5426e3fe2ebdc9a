// Elastic jobs whose ranks own shards: ddp_elastic_keep_shards and ddp_elastic_recall_shards. Jobs of
// processes that are killed are in tests/dist/elastic.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"

namespace elastic_shard_test {

using testing::HasSubstr;

const std::vector<std::int64_t> kSizes = {100, 30, 1, 700, 64, 0, 20};

// Where the ranks of a test meet.
struct Place {
    std::filesystem::path path;
    Place() {
        static std::atomic<int> counter{0};
        path = std::filesystem::temp_directory_path() /
               ("ddp-elastic-shard-" + std::to_string(getpid()) + "-" + std::to_string(counter++));
    }
    ~Place() { std::filesystem::remove_all(path); }
    std::string uri() const { return "file://" + path.string(); }
};

ddp::Elastic job_at(const Place& place, int world) {
    const std::string uri = place.uri();
    ddp_group_options group = ddp::Group::defaults();
    group.init_method = uri.c_str();
    group.backend = "tcp";
    group.timeout_ms = 20'000;
    ddp_elastic_options options = ddp::Elastic::defaults();
    options.group = &group;
    options.min_world = 1;
    options.max_world = world;
    options.settle_ms = 20'000;
    return ddp::Elastic(options);
}

// The job of a rank, as long as it lives. All ranks have the same gradients, which depend on the
// step alone, so the values after a step are those of one process, bit for bit.
struct Rank {
    ddp::Elastic job;
    Model model;
    std::vector<ddp_piece> pieces;
    std::vector<std::vector<float>> momenta;
    double updates = 0;  // a number that all owners have
    ddp_elastic_step now{};

    Rank(const Place& place, int world, bool owners = true)
        : job(job_at(place, world)), model(job.group(), kSizes, true, options()) {
        if (owners) {
            model.context.set_owner(1, DDP_OWNER_WHOLE);
            model.context.set_owner(4, DDP_OWNER_REPLICATED);
        }
        model.context.commit();
        job.add_context(model.context);
    }
    static ddp_context_options options() {
        auto o = ddp::Context::defaults();
        o.flags = DDP_CONTEXT_SHARD;
        return o;
    }

    void begin() { now = job.begin(); }
    void name_arrays() {
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            const ddp_piece& piece = pieces[i];
            model.context.add_shard_array("m", piece.param, piece.first, piece.count,
                                          momenta[i].data(), piece.replicated == 1);
        }
        if (!pieces.empty()) model.context.add_shard_array("t", 0, 0, 1, &updates, true);
    }
    void make_pieces() {
        pieces = model.context.pieces();
        momenta.clear();
        for (const ddp_piece& piece : pieces)
            momenta.emplace_back(static_cast<std::size_t>(piece.count));
        updates = 0;
    }
    bool recall() {
        make_pieces();
        name_arrays();
        return job.recall_shards(model.context);
    }
    void keep(std::int64_t step, ddp_keep where = DDP_KEEP_AT_NEIGHBOUR) {
        name_arrays();
        job.keep_shards(model.context, step, where);
    }
    // After a change of the roster.
    void enter() {
        if (!recall()) keep(0);
        expect_state(now.step);
    }
    void step(std::int64_t number) {
        for (int p = model.count(); p-- > 0;) {
            model.context.wait_value(p);
            model.fill(p, static_cast<float>(number % 7 + p));
            model.context.grad_ready(p);
        }
        model.context.finalize();
        for (std::size_t i = 0; i < pieces.size(); ++i)
            update(static_cast<float*>(pieces[i].value),
                   static_cast<const float*>(pieces[i].gradient), momenta[i]);
        updates += 1;
        model.context.publish();
    }
    static void update(float* value, const float* gradient, std::vector<float>& momentum) {
        for (std::size_t k = 0; k < momentum.size(); ++k) {
            momentum[k] = 0.5f * momentum[k] + gradient[k];
            value[k] -= 0.25f * momentum[k];
        }
    }
    void expect_state(std::int64_t steps) {
        EXPECT_EQ(updates, static_cast<double>(steps));
        for (int p = 0; p < model.count(); ++p) {
            std::vector<float> value(model.size(p)), momentum = value, gradient = value;
            for (std::int64_t s = 0; s < steps; ++s) {
                for (std::size_t k = 0; k < gradient.size(); ++k)
                    gradient[k] = static_cast<float>(s % 7 + p) + static_cast<float>(k);
                update(value.data(), gradient.data(), momentum);
            }
            model.context.wait_value(p);
            EXPECT_EQ(model.data[static_cast<std::size_t>(p)], value) << p << " after " << steps;
            for (std::size_t i = 0; i < pieces.size(); ++i) {
                if (pieces[i].param != p) continue;
                const auto first = momentum.begin() + pieces[i].first;
                EXPECT_EQ(momenta[i], std::vector<float>(first, first + pieces[i].count))
                    << p << " after " << steps;
            }
        }
    }
    // Until `steps` are done, keeping each `every` steps. Before each, `happens` may throw.
    void train(
        std::int64_t steps, const std::function<void()>& happens = [] {}, int every = 1) {
        for (;;) {
            begin();
            try {
                if (now.changed) enter();
                if (now.step >= steps) return;
                happens();
                step(now.step);
                job.commit();
                if ((now.step + 1) % every == 0 && now.step + 1 < steps) keep(now.step + 1);
            } catch (const ddp::Error& error) {
                if (ddp_group_status(job.group(), nullptr) == DDP_OK) throw;
            }
        }
    }
};

// A thread throws it.
struct Death {};

void on_threads(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i)
        threads.emplace_back([&body, i] {
            try {
                body(i);
            } catch (const Death&) {
            } catch (const std::exception& error) {
                ADD_FAILURE() << "thread " << i << ": " << error.what();
            }
        });
    for (auto& thread : threads) thread.join();
}

// All have come to a place. Those that die do not.
void all_in_first_roster(const Rank& rank, int world) {
    if (rank.now.world_size != world) throw std::runtime_error("a rank is missing");
}

TEST(ElasticShards, StateMovesWhenARankIsLostAndWhenOneJoins) {
    for (const int every : {1, 3}) {
        Place place;
        std::atomic<int> deaths{0};
        on_threads(4, [&](int i) {
            if (i == 3) {  // comes when another has gone
                while (deaths == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            Rank rank(place, 3);
            rank.train(
                80,
                [&] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
                    if (i == 1 && rank.now.step == 10) {
                        ++deaths;
                        throw Death();
                    }
                },
                every);
            rank.expect_state(80);
        });
    }
}

TEST(ElasticShards, AStepIsWholeWithoutTwoRanksThatAreNoNeighbours) {
    Place place;
    on_threads(4, [&](int) {
        Rank rank(place, 4);
        rank.train(20, [&] {
            // the neighbours are 0 and 2, and 1 and 3
            if (rank.now.step == 5 && rank.now.world_size == 4 && rank.now.rank < 2) throw Death();
        });
        EXPECT_EQ(rank.now.world_size, 2);
        rank.expect_state(20);
    });
}

TEST(ElasticShards, NeighboursThatAreLostTogetherAreAnErrorThatNamesWhatIsMissing) {
    Place place;
    on_threads(4, [&](int) {
        Rank rank(place, 4);
        bool lost = false;
        try {
            rank.train(20, [&] {
                if (rank.now.step == 5 && rank.now.world_size == 4 && rank.now.rank % 2 == 0)
                    throw Death();
            });
        } catch (const ddp::Error& error) {
            EXPECT_EQ(error.status(), DDP_ERROR_INVALID_STATE) << error.what();
            EXPECT_GE(error.param(), 0);
            EXPECT_THAT(error.what(), HasSubstr("' of 'p"));
            lost = true;
        }
        EXPECT_TRUE(lost);
        // No step begins, and nothing is kept, with values of who knows when.
        rank.model.fill(0, 1);
        EXPECT_EQ(facts_of([&] { rank.model.context.grad_ready(0); }).status,
                  DDP_ERROR_INVALID_STATE);
        EXPECT_EQ(facts_of([&] { rank.keep(3); }).status, DDP_ERROR_INVALID_STATE);
        // From a checkpoint, which is the beginning here.
        for (auto& values : rank.model.data) std::fill(values.begin(), values.end(), 0.0f);
        rank.make_pieces();
        rank.model.context.publish();
        rank.keep(0);
        rank.now.step = 0;
        rank.step(0);
        rank.job.commit();
        rank.keep(1);
        rank.train(12);
        rank.expect_state(12);
    });
}

TEST(ElasticShards, AStepInACheckpointIsTheOneToLoad) {
    Place place, folder;
    on_threads(3, [&](int) {
        Rank rank(place, 3);
        const auto values = [&] {
            rank.name_arrays();
            for (const ddp_piece& piece : rank.pieces)
                rank.model.context.add_shard_array("value", piece.param, piece.first, piece.count,
                                                   static_cast<float*>(piece.value),
                                                   piece.replicated == 1);
        };
        for (;;) {
            rank.begin();
            try {
                if (rank.now.changed) {
                    EXPECT_FALSE(rank.recall());
                    std::int64_t step = 0;
                    if (rank.now.step > 0) {
                        values();
                        step = std::stol(rank.model.context.load_shards(folder.path.string()));
                        EXPECT_EQ(step, rank.now.step);
                    }
                    rank.expect_state(step);
                    rank.keep(step, DDP_KEEP_IN_CHECKPOINT);
                }
                if (rank.now.step >= 20) break;
                if (rank.now.step == 13 && rank.now.world_size == 3 && rank.now.rank == 1)
                    throw Death();
                rank.step(rank.now.step);
                rank.job.commit();
                if ((rank.now.step + 1) % 5 == 0 && rank.now.step + 1 < 20) {
                    values();
                    rank.model.context.save_shards(folder.path.string(),
                                                   std::to_string(rank.now.step + 1));
                    rank.keep(rank.now.step + 1, DDP_KEEP_IN_CHECKPOINT);
                }
            } catch (const ddp::Error& error) {
                if (ddp_group_status(rank.job.group(), nullptr) == DDP_OK) throw;
            }
        }
        EXPECT_EQ(rank.now.world_size, 2);
        rank.expect_state(20);
    });
}

// Values after some steps of AdamW, of which one rank may be lost in the middle.
std::vector<std::vector<float>> trained_by_optimizer(const Place& place, int world, bool loss) {
    constexpr std::int64_t kSteps = 12;
    std::vector<std::vector<float>> values;
    on_threads(world, [&](int) {
        Rank rank(place, world);
        std::optional<ddp::Optimizer> optimizer;
        const auto name_states = [&] {
            std::map<ddp_param, bool> replicated;
            for (const ddp_piece& piece : rank.model.context.pieces())
                replicated[piece.param] = piece.replicated == 1;
            for (const ddp_optimizer_state& state : optimizer->states()) {
                const bool is_number = state.name == std::string("step");
                ddp::detail::call(ddp_shard_array, rank.model.context.get(), state.name,
                                  state.param, state.first, state.count, state.dtype, state.data,
                                  is_number || replicated[state.param] ? 1 : 0);
            }
        };
        for (;;) {
            rank.begin();
            try {
                if (rank.now.changed) {
                    optimizer.emplace(rank.model.context, "adamw", "lr=0.1");
                    name_states();
                    if (!rank.job.recall_shards(rank.model.context)) {
                        name_states();
                        rank.job.keep_shards(rank.model.context, 0);
                    }
                }
                if (rank.now.step >= kSteps) break;
                if (loss && rank.now.step == 6 && rank.now.world_size == 3 && rank.now.rank == 1)
                    throw Death();
                for (int p = rank.model.count(); p-- > 0;) {
                    rank.model.context.wait_value(p);
                    rank.model.fill(p, static_cast<float>(rank.now.step % 3 + p));
                    rank.model.context.grad_ready(p);
                }
                rank.model.context.finalize();
                optimizer->step();
                rank.model.context.publish();
                rank.job.commit();
                if (rank.now.step + 1 == kSteps) continue;
                name_states();
                rank.job.keep_shards(rank.model.context, rank.now.step + 1);
            } catch (const ddp::Error& error) {
                if (ddp_group_status(rank.job.group(), nullptr) == DDP_OK) throw;
            }
        }
        for (int p = 0; p < rank.model.count(); ++p) rank.model.context.wait_value(p);
        if (rank.now.rank == 0) values = rank.model.data;
    });
    return values;
}

TEST(ElasticShards, StateOfAnOptimizerMoves) {
    Place disturbed, alone;
    const auto values = trained_by_optimizer(disturbed, 3, true);
    EXPECT_EQ(values, trained_by_optimizer(alone, 1, false));
    EXPECT_NE(values.at(0).at(5), 0);
}

// Refusals at each place of a step, of a rank alone.
TEST(ElasticShards, CallsAtTheWrongTimeAreRefused) {
    Place place;
    Rank rank(place, 1);
    EXPECT_EQ(facts_of([&] { rank.keep(0); }).status, DDP_ERROR_INVALID_STATE);
    EXPECT_EQ(facts_of([&] { rank.recall(); }).status, DDP_ERROR_INVALID_STATE);
    rank.begin();
    EXPECT_EQ(rank.now.changed, 1);
    // before shards were kept
    rank.model.fill(0, 1);
    EXPECT_THAT(error_of([&] { rank.model.context.grad_ready(0); }).what(),
                HasSubstr("ddp_elastic_recall_shards"));
    EXPECT_FALSE(rank.recall());
    EXPECT_EQ(facts_of([&] { rank.keep(-1); }).status, DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(facts_of([&] { rank.keep(0, 2); }).status, DDP_ERROR_INVALID_ARGUMENT);
    rank.keep(3);  // a step that was loaded
    EXPECT_EQ(facts_of([&] { rank.keep(3); }).status, DDP_ERROR_INVALID_STATE);  // it has begun
    EXPECT_EQ(facts_of([&] { rank.recall(); }).status, DDP_ERROR_INVALID_STATE);
    rank.make_pieces();
    rank.step(3);
    EXPECT_EQ(facts_of([&] { rank.keep(4); }).status, DDP_ERROR_INVALID_STATE);
    rank.job.commit();
    EXPECT_EQ(facts_of([&] { rank.keep(3); }).status, DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(facts_of([&] { rank.keep(5); }).status, DDP_ERROR_INVALID_ARGUMENT);
    rank.keep(4);
    rank.begin();
    EXPECT_EQ(rank.now.step, 4);
    // A step that was finalized and not committed is undone.
    rank.step(4);
    rank.begin();
    EXPECT_EQ(rank.now.changed, 1);
    EXPECT_EQ(rank.now.step, 4);
    EXPECT_TRUE(rank.recall());
    EXPECT_EQ(rank.updates, 1);
}

TEST(ElasticShards, ArraysThatDoNotFitAreRefused) {
    Place place;
    Rank rank(place, 1, false);
    auto& context = rank.model.context;
    std::vector<float> some(100);
    rank.begin();
    const auto keep = [&] { rank.job.keep_shards(context, 0); };
    context.add_shard_array("value", 0, 0, 100, some.data());
    EXPECT_EQ(facts_of(keep).status, DDP_ERROR_INVALID_ARGUMENT);
    context.add_shard_array("m", 0, 1, 99, some.data());
    EXPECT_THAT(error_of(keep).what(), HasSubstr("elements 0 to 0 of 'm' of 'p0'"));
    context.add_shard_array("m", 0, 0, 100, some.data());
    keep();
    rank.step(0);
    rank.job.commit();
    context.add_shard_array("m", 0, 0, 100, some.data());
    rank.job.keep_shards(context, 1);
    ddp::detail::call(ddp_group_abort, rank.job.group(), "as a loss would");
    rank.begin();
    EXPECT_EQ(rank.now.step, 1);
    context.add_shard_array("n", 0, 0, 100, some.data());
    const auto recall = [&] { rank.job.recall_shards(context); };
    EXPECT_THAT(error_of(recall).what(), HasSubstr("saved without 'n'; it has 'm', 'value'"));
    std::vector<double> wide(100);
    context.add_shard_array("m", 0, 0, 100, wide.data());
    EXPECT_EQ(facts_of(recall).status, DDP_ERROR_MISMATCH);
    context.add_shard_array("value", 0, 0, 100, some.data());
    EXPECT_EQ(facts_of(recall).status, DDP_ERROR_INVALID_ARGUMENT);
    // Elements of a parameter in two arrays.
    context.add_shard_array("m", 0, 0, 60, some.data());
    context.add_shard_array("m", 0, 60, 40, some.data() + 60);
    recall();
}

// Ranks that do not do the same.
TEST(ElasticShards, RanksThatDifferAreAMismatch) {
    struct Case {
        const char* text;
        std::function<void(Rank&, int rank)> keep;
    };
    const std::vector<Case> cases = {
        {"rank 1 keeps step 1 at a neighbour", [](Rank& rank, int number) { rank.keep(number); }},
        {"in a checkpoint",
         [](Rank& rank, int number) {
             rank.keep(0, number == 0 ? DDP_KEEP_AT_NEIGHBOUR : DDP_KEEP_IN_CHECKPOINT);
         }},
        {"was saved by rank 0 and by rank 1",
         [](Rank& rank, int) {
             rank.model.context.add_shard_array("m", 1, 0, 1, rank.model.data[1].data());
             rank.job.keep_shards(rank.model.context, 0);
         }},
        {"were saved by no rank",
         [](Rank& rank, int number) {
             if (number == 2)
                 rank.model.context.add_shard_array("m", 1, 1, 1, rank.model.data[1].data());
             rank.job.keep_shards(rank.model.context, 0);
         }},
        {"has other bits on rank 2 than on rank 0",
         [](Rank& rank, int number) {
             if (number == 2) rank.updates = 9;
             rank.keep(0);
         }},
    };
    for (const Case& one : cases) {
        Place place;
        on_threads(3, [&](int) {
            Rank rank(place, 3);
            rank.begin();
            all_in_first_roster(rank, 3);
            EXPECT_FALSE(rank.recall());
            const ddp::Error error = error_of([&] { one.keep(rank, rank.now.rank); });
            EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH) << error.what();
            EXPECT_THAT(error.what(), HasSubstr(one.text));
            rank.updates = 0;
            rank.keep(0);  // all is as before
            rank.step(0);
            rank.job.commit();
            rank.expect_state(1);
        });
    }
}

TEST(ElasticShards, ARankThatKeepsTwiceIsAMismatch) {
    Place place;
    on_threads(2, [&](int) {
        Rank rank(place, 2);
        rank.begin();
        all_in_first_roster(rank, 2);
        rank.enter();
        rank.step(0);
        rank.job.commit();
        rank.keep(1);
        const ddp::Error error = error_of([&] {
            if (rank.now.rank == 0) rank.keep(1);
            rank.begin();
            rank.step(1);
        });
        EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("ddp_elastic_keep_shards"));
    });
}

TEST(ElasticShards, AContextWithShardsIsTheOnlyOne) {
    Place place;
    Rank rank(place, 1);
    Model other(rank.job.group(), {3}, false);
    other.context.commit();
    EXPECT_EQ(facts_of([&] { rank.job.add_context(other.context); }).status, DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(facts_of([&] { rank.job.keep_shards(other.context, 0); }).status,
              DDP_ERROR_INVALID_STATE);
    ddp::Elastic second = job_at(Place(), 1);
    Model first(second.group(), {3}, false), sharded(second.group(), {3}, true, Rank::options());
    first.context.commit();
    sharded.context.commit();
    second.add_context(first.context);
    EXPECT_EQ(facts_of([&] { second.add_context(sharded.context); }).status, DDP_ERROR_UNSUPPORTED);
}

}  // namespace elastic_shard_test
