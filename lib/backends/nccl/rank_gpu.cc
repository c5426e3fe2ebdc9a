#include "backends/nccl/rank_gpu.h"

#include <map>
#include <set>

#include "util/error.h"
#include "util/options.h"
#include "util/text.h"

namespace libddp::cuda {
namespace {

constexpr int kSharesSince = 23000;

std::string describe_shared(const RankGpu& gpu, std::size_t one, std::size_t other) {
    return str("ranks ", one, " and ", other, " both use ", gpu.name, " of one host");
}

}  // namespace

std::string nccl_version_text(int version) {
    return str(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::string encode(const RankGpu& gpu) {
    return str(gpu.nccl, '\n', gpu.shares ? 1 : 0, '\n', gpu.name, '\n', gpu.id);
}

RankGpu decode(const std::string& text) {
    TextIn lines(text);
    std::string version, shares;
    RankGpu gpu;
    if (!std::getline(lines, version) || !std::getline(lines, shares) ||
        !std::getline(lines, gpu.name) || !std::getline(lines, gpu.id))
        fail(DDP_ERROR_INTERNAL, "'", text, "' does not say which GPU a rank uses");
    gpu.nccl = static_cast<int>(parse_int(version, 0, INT32_MAX, "NCCL's version"));
    gpu.shares = shares == "1";
    return gpu;
}

std::string fault_of(const std::vector<RankGpu>& gpus, int* rank) {
    std::map<std::string, std::size_t> rank_of;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const RankGpu& gpu = gpus[i];
        *rank = static_cast<int>(i);
        if (gpu.nccl != gpus[0].nccl)
            return str("rank ", i, " has NCCL ", nccl_version_text(gpu.nccl), ", and rank 0 has ",
                       nccl_version_text(gpus[0].nccl), "; install one version on all hosts");
        const auto [taken, fresh] = rank_of.emplace(gpu.id, i);
        if (fresh) continue;
        const std::string shared = describe_shared(gpu, taken->second, i);
        if (gpu.nccl < kSharesSince)
            return str(shared, ", which NCCL ", nccl_version_text(gpu.nccl),
                       " does not support (from ", nccl_version_text(kSharesSince),
                       " on it does); give each rank a GPU of its own, or use the backend auto, "
                       "which copies through the host");
        if (!gpu.shares || !gpus[taken->second].shares)
            return str(shared, "; NCCL supports that with ", kShareVariable,
                       "=1 in the environment of both. Or give each rank a GPU of its own, or use "
                       "the backend auto");
    }
    *rank = -1;
    return {};
}

bool any_shared(const std::vector<RankGpu>& gpus) {
    std::set<std::string> ids;
    for (const RankGpu& gpu : gpus) ids.insert(gpu.id);
    return ids.size() < gpus.size();
}

}  // namespace libddp::cuda
