// Norms of gradients and optimizers on a GPU, through the public interface, against the CPU's own.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ddp/ddp.h"
#include "gpu/gpu_model.h"
#include "kernels/arithmetic.h"
#include "kernels/exact_sum.h"
#include "kernels/updates.h"

namespace libddp {
namespace {

using namespace testing_gpu;

double norm_of(const std::vector<std::vector<float>>& gradients, cpu::NormKind kind) {
    double terms = 0;
    for (const auto& gradient : gradients)
        terms = cpu::add_norm_terms(
            terms, cpu::norm_terms(gradient.data(), gradient.size(), DDP_F32, kind), kind);
    return kind == cpu::NormKind::kSquares ? std::sqrt(terms) : terms;
}

TEST(GpuTraining, NormsHaveTheBitsOfTheCpuAndClip) {
    for (const Case& test : {Case{2, "shm", true}, Case{1, "shm", false}})
        on_ranks(RankOptions(test.world, test.backend), [&](int rank, ddp_group* group) {
            GpuModel model(group, test, 0, [](ddp_context* context) {
                for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
                    std::int32_t norm = -1;
                    OK(ddp_track_grad_norm(context, p, nullptr, 0, &norm, &error));
                }
            });
            for (int step = 0; step < 3; ++step) {
                model.begin();
                for (int p = kParams; p-- > 0;) model.give(p, gradient(rank, p, step));
                model.finalize();
                std::vector<std::vector<float>> means;
                for (int p = 0; p < kParams; ++p) means.push_back(model.read(p));
                for (int kind = 0; kind < 3; ++kind) {
                    double norm = -1;
                    OK(ddp_grad_norm(model.context(), kind, &norm, &error));
                    EXPECT_EQ(norm, norm_of(means, static_cast<cpu::NormKind>(kind)));
                }
                double norm = -1;
                OK(ddp_clip_grad_norm(model.context(), 1, 3, &norm, &error));
                const auto factor = static_cast<float>(3 / (norm + 1e-6));
                for (int p = 0; p < kParams; ++p) {
                    const std::vector<float> clipped = model.read(p);
                    for (std::size_t k = 0; k < clipped.size(); ++k)
                        ASSERT_EQ(clipped[k], means[static_cast<std::size_t>(p)][k] * factor);
                }
            }
        });
}

// A reference that steps the same values on the CPU.
struct OnCpu {
    std::string name;
    std::vector<float> values, first, second;
    int t = 0;

    explicit OnCpu(std::string method, std::vector<float> start)
        : name(std::move(method)), values(std::move(start)), first(values), second(values) {
        std::fill(first.begin(), first.end(), 0.0f);
        second = first;
    }
    void step(const std::vector<float>& gradient) {
        ++t;
        if (name == "sgd")
            return cpu::sgd_step(values.data(), gradient.data(), first.data(), values.size(),
                                 DDP_F32, {0.1, 0.9, 0.2, 1, 0.5, false});
        cpu::AdamStep step{0.9,
                           0.999,
                           name == "lamb" ? 1e-6 : 1e-8,
                           0.5,
                           1 - std::pow(0.9, t),
                           std::sqrt(1 - std::pow(0.999, t)),
                           0.1,
                           0.2};
        if (name == "adamw")
            return cpu::adamw_step(values.data(), gradient.data(), first.data(), second.data(),
                                   values.size(), DDP_F32, step);
        std::vector<float> direction(values.size());
        cpu::lamb_direction(direction.data(), values.data(), gradient.data(), first.data(),
                            second.data(), values.size(), DDP_F32, step);
        cpu::ExactSum of_values, of_direction;
        of_values.add_squares(values.data(), values.size(), DDP_F32);
        of_direction.add_squares(direction.data(), values.size(), DDP_F32);
        const double value = std::sqrt(of_values.value());
        const double size = std::sqrt(of_direction.value());
        cpu::SgdStep along;
        along.rate = 0.1 * (value == 0 || size == 0 ? 1 : value / size);
        cpu::sgd_step(values.data(), direction.data(), nullptr, values.size(), DDP_F32, along);
    }
};

TEST(GpuTraining, OptimizersHaveTheBitsOfTheCpu) {
    const std::pair<const char*, const char*> methods[] = {
        {"sgd", "lr=0.1,momentum=0.9,weight_decay=0.2"},
        {"adamw", "lr=0.1,weight_decay=0.2"},
        {"lamb", "lr=0.1,weight_decay=0.2"}};
    for (const auto& [name, settings] : methods)
        for (const Case& test : {Case{2, "shm", true}, Case{1, "shm", false}})
            on_ranks(RankOptions(test.world, test.backend), [&](int rank, ddp_group* group) {
                GpuModel model(group, test);
                std::vector<OnCpu> references;
                for (int p = 0; p < kParams; ++p) references.emplace_back(name, model.value(p));
                ddp_optimizer* optimizer = nullptr;
                OK(ddp_optimizer_create(model.context(), name, settings, &optimizer, &error));
                for (int step = 0; step < 4; ++step) {
                    model.begin();
                    for (int p = kParams; p-- > 0;) model.give(p, gradient(rank, p, step));
                    model.finalize();
                    for (int p = 0; p < kParams; ++p)
                        references[static_cast<std::size_t>(p)].step(model.read(p));
                    OK(ddp_optimizer_step(optimizer, 0.5, &error));
                    for (int p = 0; p < kParams; ++p)
                        ASSERT_EQ(model.value(p), references[static_cast<std::size_t>(p)].values)
                            << name << ", " << p << ", step " << step;
                }
                ddp_optimizer_free(optimizer);
            });
}

}  // namespace
}  // namespace libddp
