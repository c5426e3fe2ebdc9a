// Programs that use MPI themselves: which threads the backend calls MPI on, whatever level of
// thread support the program asked for. Runs under mpirun: dist_mpi_threads LEVEL, where LEVEL is
// what the program initialises MPI with, or "none" if it leaves that to the backend.
#include <mpi.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "dist/mpi/support.h"
#include "dist/mpi/watch.h"
#include "support/model.h"

namespace {

using namespace std::chrono_literals;
using watch::Inside;
using watch::OwnCall;

int level = -1;  // MPI_THREAD_*, or -1: the backend initialises MPI

// The backend works on the program's threads.
bool on_callers() {
    return level >= 0 && level != MPI_THREAD_MULTIPLE;
}
// Only on the one that initialised MPI.
bool main_only() {
    return level == MPI_THREAD_SINGLE;
}

class MpiThreads : public testing::Test {
protected:
    void SetUp() override {
        watch::expect(on_callers() ? watch::Rule::kCallersOnly : watch::Rule::kNone);
        const Inside inside;
        group_ = join();
        // From now on every call comes from one thread; communicators are made on others.
        if (!on_callers()) watch::expect(watch::Rule::kOneThread);
    }
    void TearDown() override {
        {
            const Inside inside;
            group_ = {};
        }
        EXPECT_EQ(watch::complaint(), "");
    }

    static void program_uses_mpi(int step) {
        if (level < 0) return;
        const OwnCall call;
        int sum = step;
        MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        ASSERT_EQ(sum, step * world());
    }

    ddp::Group group_;
};

TEST_F(MpiThreads, AProgramTrainsAndUsesMpiBetweenTheSteps) {
    Model model(group_.get(), {1000, 7, 400'000}, true);
    {
        const Inside inside;
        model.context.commit();
    }
    for (int step = 1; step <= 5; ++step) {
        {
            const Inside inside;
            model.context.step_begin();
        }
        for (int p = 2; p >= 0; --p) {
            model.fill(p, static_cast<float>(my_rank() * step));
            model.context.grad_ready(p);
            // A bucket may be on its way.
            program_uses_mpi(step);
        }
        {
            const Inside inside;
            model.context.finalize();
        }
        program_uses_mpi(step);
        for (int p = 0; p < 3; ++p)
            ASSERT_NEAR(model.grad(p)[1], 1 + step * (world() - 1) / 2.0, 1e-6)
                << "step " << step << " p" << p;
    }
}

TEST_F(MpiThreads, NothingHappensUnlessSomebodyWaits) {
    if (!on_callers()) GTEST_SKIP() << "the backend has a thread of its own";
    std::vector<float> data(100'000, 1);
    auto work = group_.allreduce(data.data(), data.size());
    const auto before = watch::calls();
    std::this_thread::sleep_for(50ms);
    program_uses_mpi(3);
    EXPECT_EQ(watch::calls(), before);
    {
        const Inside inside;
        work.wait(10'000);  // a wait with a bound works too
    }
    EXPECT_GT(watch::calls(), before);
    EXPECT_EQ(data[99'999], static_cast<float>(world()));
}

TEST_F(MpiThreads, AskingIsEnough) {
    std::vector<float> data(1000, 2);
    auto work = group_.allreduce(data.data(), data.size());
    const auto give_up = std::chrono::steady_clock::now() + 10s;
    bool done = false;
    while (!done && std::chrono::steady_clock::now() < give_up) {
        const Inside inside;
        done = work.test();
    }
    EXPECT_TRUE(done);
    EXPECT_EQ(data[0], static_cast<float>(2 * world()));
}

TEST_F(MpiThreads, AnotherThreadMayWaitUnlessMpiForbidsIt) {
    std::string error;
    std::thread other([&] {
        const Inside inside;
        try {
            float value = 1;
            group_.allreduce(&value, 1).wait();
            EXPECT_EQ(value, static_cast<float>(world()));
        } catch (const ddp::Error& e) {
            EXPECT_EQ(e.status(), DDP_ERROR_INVALID_STATE) << e.what();
            error = e.what();
        }
    });
    other.join();
    EXPECT_EQ(error.find("MPI_THREAD_SERIALIZED") != std::string::npos, main_only()) << error;
}

TEST_F(MpiThreads, GroupsAreSplitAndFreed) {
    for (int i = 0; i < 10; ++i) {
        const Inside inside;
        auto part = group_.split(my_rank() % 2);
        std::int32_t sum = 1;
        part.allreduce(&sum, 1).wait();
        EXPECT_EQ(sum, part.world_size());
    }
    // A thread that waits for nothing frees one.
    ddp::Group part;
    {
        const Inside inside;
        part = group_.split(0);
    }
    std::thread([&] { part = {}; }).join();
    program_uses_mpi(1);
}

// The last of a program: groups that outlive MPI fail by a sentence, and do not end the process.
int use_after_finalize() {
    auto group = join();
    MPI_Finalize();
    float value = 1;
    for (int i = 0; i < 2; ++i) try {
            if (i == 0)
                group.allreduce(&value, 1).wait();
            else
                join("", 0, "late");
            std::fprintf(stderr, "no error after MPI_Finalize\n");
            return 1;
        } catch (const ddp::Error& error) {
            if (error.status() == DDP_ERROR_INVALID_STATE &&
                std::string(error.what()).find("MPI_Finalize") != std::string::npos)
                continue;
            std::fprintf(stderr, "after MPI_Finalize: %s\n", error.what());
            return 1;
        }
    return 0;
}

int level_named(const std::string& name) {
    return name == "single"       ? MPI_THREAD_SINGLE
           : name == "serialized" ? MPI_THREAD_SERIALIZED
           : name == "multiple"   ? MPI_THREAD_MULTIPLE
                                  : -1;
}

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    level = level_named(argc > 1 ? argv[1] : "none");
    if (level >= 0) {
        int provided = -1;
        MPI_Init_thread(&argc, &argv, level, &provided);
        if (provided != level) {
            std::fprintf(stderr, "MPI grants level %d and not %d\n", provided, level);
            return 1;
        }
    }
    int failed = RUN_ALL_TESTS();
    watch::expect(watch::Rule::kNone);
    if (level >= 0) failed += use_after_finalize();
    return failed;
}
