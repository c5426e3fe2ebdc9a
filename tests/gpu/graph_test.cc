// Training steps that are captured into a graph, and the launches of the graph, against numbers
// computed on the host.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_model.h"
#include "kernels/on_device.h"

namespace libddp {

std::string testing_gpu::why_skip() {
    return no_gpu();
}

namespace {

using namespace testing_gpu;

void cuda(cudaError_t code) {
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

// A graph of the work that `body` enqueues on a stream. It may outlive all else.
class Graph {
public:
    Graph(void* stream, const std::function<void()>& body) {
        const auto captured = static_cast<cudaStream_t>(stream);
        cuda(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal));
        cudaGraph_t graph = nullptr;
        try {
            body();
        } catch (...) {
            cudaStreamEndCapture(captured, &graph);
            if (graph) cudaGraphDestroy(graph);
            throw;
        }
        cuda(cudaStreamEndCapture(captured, &graph));
        cuda(cudaGraphInstantiate(&executable_, graph, 0));
        cuda(cudaGraphDestroy(graph));
    }
    ~Graph() {
        if (executable_) cudaGraphExecDestroy(executable_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void launch(void* stream) {
        cuda(cudaGraphLaunch(executable_, static_cast<cudaStream_t>(stream)));
    }

private:
    cudaGraphExec_t executable_ = nullptr;
};

// A model with memory of the test's own that a captured step reads gradients from, and writes
// results to.
class Trainer {
public:
    Trainer(ddp_group* group, const Case& test, std::uint32_t flags = 0)
        : rank_(ddp_group_rank(group)),
          world_(ddp_group_world_size(group)),
          beside_({DDP_DEVICE_CUDA, rank_ % device_count(DDP_DEVICE_CUDA)}),
          model_(group, test, flags) {
        for (const std::size_t size : kSizes) {
            inputs_.push_back(beside_.allocate(size * 4));
            results_.push_back(beside_.allocate(size * 4));
        }
        beside_.wait();
    }

    GpuModel& model() { return model_; }
    ddp_context* context() { return model_.context(); }

    void step_outside(int step) {
        model_.begin();
        for (int p = kParams; p-- > 0;) model_.give(p, gradient(rank_, p, step));
        model_.finalize();
        for (int p = 0; p < kParams; ++p) EXPECT_TRUE(model_.holds(p, mean(world_, p, step)));
    }
    void warm_up() {
        for (int step = 0; step < 3; ++step) step_outside(step);
    }

    void enqueue_gradient(int p) {
        const auto i = static_cast<std::size_t>(p);
        on_device::transfer(model_.gpu().stream(), {{model_.grad(p), inputs_[i].get(), kSizes[i]}},
                            DDP_F32, DDP_F32, 1);
        OK(ddp_grad_ready_on(context(), p, model_.stream(), &error));
    }
    void enqueue_results() {
        for (int p = 0; p < kParams; ++p) {
            const auto i = static_cast<std::size_t>(p);
            on_device::transfer(model_.gpu().stream(),
                                {{results_[i].get(), model_.grad(p), kSizes[i]}}, DDP_F32, DDP_F32,
                                1);
        }
    }
    void enqueue_step() {
        OK(ddp_step_begin(context(), &error));
        for (int p = kParams; p-- > 0;) enqueue_gradient(p);
        model_.finalize();
        enqueue_results();
    }
    std::unique_ptr<Graph> capture() {
        return std::make_unique<Graph>(model_.stream(), [this] { enqueue_step(); });
    }

    void set_inputs(int step) {
        for (int p = 0; p < kParams; ++p)
            beside_.write(inputs_[static_cast<std::size_t>(p)].get(),
                          GpuModel::numbers(p, gradient(rank_, p, step)));
    }
    // After what is on the stream.
    void expect_results(void* stream, int step) {
        cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
        for (int p = 0; p < kParams; ++p) {
            const auto i = static_cast<std::size_t>(p);
            const auto actual = values_of<float>(beside_.read(results_[i].get(), kSizes[i] * 4));
            const auto expected = values_of<float>(GpuModel::numbers(p, mean(world_, p, step)));
            EXPECT_THAT(actual, ::testing::Pointwise(::testing::FloatNear(1e-4f), expected))
                << "gradient " << p << " of step " << step;
        }
    }
    // All of them are NaN.
    void expect_nothing(void* stream) {
        cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
        for (std::size_t i = 0; i < kSizes.size(); ++i)
            EXPECT_THAT(values_of<float>(beside_.read(results_[i].get(), kSizes[i] * 4)),
                        ::testing::Each(::testing::IsNan()))
                << "gradient " << i;
    }

private:
    const int rank_, world_;
    Gpu beside_;
    GpuModel model_;
    std::vector<std::shared_ptr<std::byte>> inputs_, results_;
};

void with_ranks(const Case& test, const std::function<void(int rank, ddp_group*)>& body) {
    RankOptions options(test.world, test.backend);
    options.timeout_ms = 60'000;
    on_ranks(options, body);
}

class GpuGraph : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        const int world = GetParam().world;
        if (device_count(DDP_DEVICE_CUDA) < world && !(world == 2 && shares_gpus()))
            GTEST_SKIP() << "a GPU for each rank is needed";
        ddp_error* error = nullptr;
        if (ddp_backend_available("nccl", &error) != 1) GTEST_SKIP() << take_message(error);
    }
};

INSTANTIATE_TEST_SUITE_P(All, GpuGraph,
                         ::testing::Values(Case{1, "nccl", true}, Case{2, "nccl", true},
                                           Case{3, "nccl", false}, Case{2, "nccl", false, "fp16"},
                                           Case{2, "nccl", true, "bf16"},
                                           Case{1, "shm", true, "fp16"}, Case{1, "shm", false}),
                         [](const auto& test) {
                             return test.param.backend + std::to_string(test.param.world) +
                                    (test.param.view ? "view" : "copy") +
                                    (test.param.hook ? test.param.hook : "");
                         });

TEST_P(GpuGraph, EachLaunchDoesTheStepAgain) {
    with_ranks(GetParam(), [](int, ddp_group* group) {
        Trainer trainer(group, GetParam());
        trainer.warm_up();
        const auto graph = trainer.capture();
        void* const stream = trainer.model().stream();
        for (int step = 3; step < 8; ++step) {
            trainer.set_inputs(step);
            graph->launch(stream);
            trainer.expect_results(stream, step);
        }
        // Steps outside of it go on as before, and so does the graph.
        trainer.step_outside(8);
        trainer.set_inputs(9);
        graph->launch(stream);
        trainer.expect_results(stream, 9);
        trainer.step_outside(10);
    });
}

TEST_P(GpuGraph, HoldsSeveralSteps) {
    with_ranks(GetParam(), [](int, ddp_group* group) {
        Trainer trainer(group, GetParam());
        trainer.warm_up();
        void* const stream = trainer.model().stream();
        Graph graph(stream, [&] {
            for (int step = 0; step < 3; ++step) trainer.enqueue_step();
        });
        for (int step = 3; step < 5; ++step) {
            trainer.set_inputs(step);
            graph.launch(stream);
            trainer.expect_results(stream, step);
        }
    });
}

// The memory of the buckets and the communicator are there as long as the graph is.
TEST_P(GpuGraph, OutlivesItsContextAndGroup) {
    constexpr std::size_t kMost = 3;
    std::vector<std::unique_ptr<Trainer>> trainers(kMost);
    std::vector<std::unique_ptr<Graph>> graphs(kMost);
    std::vector<cudaStream_t> streams(kMost);
    with_ranks(GetParam(), [&](int rank, ddp_group* group) {
        const auto r = static_cast<std::size_t>(rank);
        trainers[r] = std::make_unique<Trainer>(group, GetParam());
        trainers[r]->warm_up();
        graphs[r] = trainers[r]->capture();
        cuda(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
        trainers[r]->model().free_context();
    });
    const auto world = static_cast<std::size_t>(GetParam().world);
    for (int step = 3; step < 5; ++step) {
        for (std::size_t r = 0; r < world; ++r) trainers[r]->set_inputs(step);
        for (std::size_t r = 0; r < world; ++r) graphs[r]->launch(streams[r]);
        for (std::size_t r = 0; r < world; ++r) trainers[r]->expect_results(streams[r], step);
    }
    for (std::size_t r = 0; r < world; ++r) {
        graphs[r].reset();
        cudaStreamDestroy(streams[r]);
    }
    Gpu next;  // frees what the graphs have kept
}

// The call was refused, and the error names the step.
void expect_refused(ddp_status status, ddp_error* error, ddp_status expected, const char* part,
                    std::int64_t step) {
    EXPECT_EQ(status, expected) << part;
    if (!error) return;
    EXPECT_EQ(ddp_error_step(error), step) << part;
    EXPECT_NE(take_message(error).find(part), std::string::npos) << part;
}

struct Refused {
    const char* name;
    const char* backend;
    std::uint32_t flags;
    const char* hook;
    int world, steps_before;
    ddp_status status;
    const char* part;  // of the message
};

class GpuGraphRefuses : public ::testing::TestWithParam<Refused> {};

INSTANTIATE_TEST_SUITE_P(
    All, GpuGraphRefuses,
    ::testing::Values(
        Refused{"host", "shm", 0, nullptr, 2, 3, DDP_ERROR_UNSUPPORTED, "shm"},
        Refused{"first", "shm", 0, nullptr, 1, 0, DDP_ERROR_INVALID_STATE, "outside of a graph"},
        Refused{"unused", "shm", DDP_CONTEXT_FIND_UNUSED, nullptr, 1, 3, DDP_ERROR_UNSUPPORTED,
                "DDP_CONTEXT_STATIC_GRAPH"},
        Refused{"powersgd", "shm", 0, "powersgd", 1, 3, DDP_ERROR_UNSUPPORTED, "powersgd"}),
    [](const auto& test) { return std::string(test.param.name); });

// A refused call changes nothing: the step can be made outside.
TEST_P(GpuGraphRefuses, WhatTheHostHasAPartIn) {
    const Refused& test = GetParam();
    with_ranks({test.world, test.backend, true}, [&](int, ddp_group* group) {
        Trainer trainer(group, {test.world, test.backend, true, test.hook}, test.flags);
        for (int step = 0; step < test.steps_before; ++step) {
            trainer.model().begin();
            for (int p = kParams; p-- > 0;) trainer.model().give(p, 1);
            trainer.model().finalize();
        }
        OK(ddp_step_begin(trainer.context(), &error));
        Graph empty(trainer.model().stream(), [&] {
            ddp_error* error = nullptr;
            const ddp_status status =
                ddp_grad_ready_on(trainer.context(), 0, trainer.model().stream(), &error);
            expect_refused(status, error, test.status, test.part, test.steps_before);
        });
        for (int p = kParams; p-- > 0;) trainer.model().give(p, 1);
        trainer.model().finalize();
        trainer.model().gpu().wait();
    });
}

TEST(GpuGraph, AllOfAStepIsInItOrNothing) {
    with_ranks({1, "shm", true}, [](int, ddp_group* group) {
        Trainer trainer(group, {1, "shm", true});
        trainer.warm_up();
        Gpu other(trainer.model().gpu().stream().device());
        const auto ready = [&](int p, void* stream, const char* part) {
            ddp_error* error = nullptr;
            const ddp_status status = ddp_grad_ready_on(trainer.context(), p, stream, &error);
            expect_refused(status, error, DDP_ERROR_INVALID_STATE, part, 3);
        };
        // Begun outside.
        OK(ddp_grad_ready_on(trainer.context(), 5, other.handle(), &error));
        Graph nothing(trainer.model().stream(), [&] {
            ready(4, trainer.model().stream(), "outside of the capture");
            ddp_error* error = nullptr;
            const auto status =
                ddp_finalize_on(trainer.context(), trainer.model().stream(), &error);
            expect_refused(status, error, DDP_ERROR_INVALID_STATE, "outside of the capture", 3);
        });
        for (int p = kParams - 1; p-- > 0;) trainer.model().give(p, gradient(0, p, 3));
        trainer.model().fill(5, gradient(0, 5, 3));
        trainer.model().finalize();
        trainer.model().gpu().wait();
    });
    with_ranks({1, "shm", true}, [](int, ddp_group* group) {
        Trainer trainer(group, {1, "shm", true});
        trainer.warm_up();
        Gpu other(trainer.model().gpu().stream().device());
        ddp_context* const context = trainer.context();
        void* const stream = trainer.model().stream();
        Graph graph(stream, [&] {
            trainer.enqueue_gradient(5);
            const auto refused = [](const char* part, auto call) {
                ddp_error* error = nullptr;
                const ddp_status status = call(&error);
                expect_refused(status, error, DDP_ERROR_INVALID_STATE, part, 3);
            };
            refused("not part", [&](ddp_error** error) {
                return ddp_grad_ready_on(context, 4, other.handle(), error);
            });
            refused("not part", [&](ddp_error** error) {
                return ddp_finalize_on(context, other.handle(), error);
            });
            refused("ddp_finalize has",
                    [&](ddp_error** error) { return ddp_finalize(context, error); });
            refused("ddp_step_discard",
                    [&](ddp_error** error) { return ddp_step_discard(context, error); });
            for (int p = kParams - 1; p-- > 0;) trainer.enqueue_gradient(p);
            OK(ddp_finalize_async(context, &error));
            refused("ddp_wait_param has",
                    [&](ddp_error** error) { return ddp_wait_param(context, 5, error); });
            for (int p = kParams; p-- > 0;) OK(ddp_wait_param_on(context, p, stream, &error));
            trainer.model().finalize();
            trainer.enqueue_results();
        });
        trainer.set_inputs(7);
        graph.launch(stream);
        trainer.expect_results(stream, 7);
    });
}

void with_two_ranks(long timeout_ms, const std::function<void(int rank, ddp_group*)>& body) {
    if (device_count(DDP_DEVICE_CUDA) < 2 && !shares_gpus())
        GTEST_SKIP() << "a GPU for each rank is needed";
    ddp_error* none = nullptr;
    if (ddp_backend_available("nccl", &none) != 1) GTEST_SKIP() << take_message(none);
    RankOptions options(2, "nccl");
    options.timeout_ms = timeout_ms;
    on_ranks(options, body);
}

// The rank that launches calls nothing of libddp, and must not go on with what is there.
TEST(GpuGraphRanks, GetNoNumbersWhenTheGroupBreaks) {
    std::promise<void> launched_once;
    with_two_ranks(60'000, [&](int rank, ddp_group* group) {
        Trainer trainer(group, {2, "nccl", rank == 0});
        trainer.warm_up();
        const auto graph = trainer.capture();
        void* const stream = trainer.model().stream();
        trainer.set_inputs(3);
        graph->launch(stream);
        trainer.expect_results(stream, 3);
        if (rank == 0) launched_once.set_value();
        if (rank == 1) launched_once.get_future().wait();
        if (rank == 1) return static_cast<void>(ddp_group_abort(group, "this rank goes", nullptr));
        for (int launch = 0; launch < 2; ++launch) {  // it waits, and is aborted; it cannot begin
            graph->launch(stream);
            trainer.expect_nothing(stream);
        }
        EXPECT_NE(ddp_barrier(group, nullptr, nullptr), DDP_OK);
    });
}

// One of the ranks runs the step that the other captures.
TEST(GpuGraphRanks, CaptureTheSameSteps) {
    with_two_ranks(10'000, [](int rank, ddp_group* group) {
        Trainer trainer(group, {2, "nccl", true});
        trainer.warm_up();
        const auto step = [&] {
            for (int p = kParams; p-- > 0;) {
                ddp_error* error = nullptr;
                if (ddp_grad_ready_on(trainer.context(), p, trainer.model().stream(), &error) !=
                    DDP_OK)
                    return error;
            }
            ddp_error* error = nullptr;
            if (ddp_finalize_on(trainer.context(), trainer.model().stream(), &error) != DDP_OK)
                return error;
            return ddp_barrier(group, nullptr, &error), error;
        };
        ddp_error* error = nullptr;
        if (rank == 0) {
            try {
                Graph graph(trainer.model().stream(), [&] {
                    error = step();
                    if (error) throw std::runtime_error("refused");
                });
            } catch (const std::runtime_error&) {
            }
        } else {
            error = step();
        }
        ASSERT_NE(error, nullptr);
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_MISMATCH);
        EXPECT_NE(take_message(error).find("captures the step"), std::string::npos);
    });
}

}  // namespace
}  // namespace libddp
