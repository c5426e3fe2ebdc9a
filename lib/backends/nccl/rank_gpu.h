// Which GPU each rank of a communicator uses, as the ranks tell each other before NCCL connects
// them. Plain C++.
#pragma once

#include <string>
#include <vector>

namespace libddp::cuda {

// Set to 1, it allows NCCL, where that can, to have several ranks on one GPU.
constexpr const char* kShareVariable = "NCCL_MULTI_RANK_GPU_ENABLE";

struct RankGpu {
    std::string id;       // unique among all hosts
    std::string name;     // for people: "GPU 0000:01:00.0"
    int nccl = 0;         // NCCL's version
    bool shares = false;  // kShareVariable is 1
};

std::string encode(const RankGpu& gpu);
RankGpu decode(const std::string& text);

// "2.28.9" from 22809.
std::string nccl_version_text(int version);

// Why NCCL could not connect these ranks: they have different versions, or share a GPU where NCCL
// does not allow that. Empty if it could. *rank: one that is concerned.
std::string fault_of(const std::vector<RankGpu>& gpus, int* rank);
// Whether two of them are one.
bool any_shared(const std::vector<RankGpu>& gpus);

}  // namespace libddp::cuda
