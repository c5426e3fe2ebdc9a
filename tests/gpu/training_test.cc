// Norms of gradients on a GPU, through the public interface, against the CPU's own sums.
#include <cmath>
#include <limits>

#include "ddp/ddp.h"
#include "gpu/gpu_model.h"
#include "kernels/arithmetic.h"

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

}  // namespace
}  // namespace libddp
