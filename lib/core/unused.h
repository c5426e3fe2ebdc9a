// Gradients that a rank does not use in a step: which they are, on this rank and on any (Li et al.
// 2020, section 3.2.3), and those whose results wait for the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/observer.h"
#include "core/participation.h"
#include "core/step.h"

namespace libddp {

class Unused final : public Observer {
public:
    explicit Unused(const Model& model);

    // This rank uses it.
    void mark(std::int32_t param) { here_[static_cast<std::size_t>(param)] = 1; }
    const std::vector<std::uint8_t>& here() const { return here_; }
    // After wait().
    const std::vector<std::uint8_t>& anywhere() const { return anywhere_; }
    bool used_anywhere(std::int32_t param) const {
        return anywhere_[static_cast<std::size_t>(param)] != 0;
    }
    // The answer of the other ranks is there afterwards. Throws what went wrong.
    void wait();

    // Whether the result of the gradient depends on the other ranks.
    bool waits_for_answer(std::int32_t param, Role role) const {
        return role == Role::kExpected && here_[static_cast<std::size_t>(param)] == 0;
    }
    void postpone(const BucketTensor& tensor) { undecided_.push_back(tensor); }
    bool postponed(std::int32_t param) const;
    // The gradients that were postponed, which wait no longer.
    std::vector<BucketTensor> take_postponed() { return std::exchange(undecided_, {}); }

    // Zeros are about to stand for this gradient. Perhaps the program adds to its gradients, and
    // has not said so.
    void warn_of_leftover(std::int32_t param, const Gradient& gradient, std::int32_t rank,
                          std::int64_t step);

    // Asks the other ranks, after the last bucket, so that the answer travels while results are
    // written back.
    void on_close(ReducerParts& parts) override;
    // A gradient is the result now, and not as it was.
    void on_result(std::int32_t param) { has_result_[static_cast<std::size_t>(param)] = true; }
    void on_forget() override;

private:
    const Model& model_;
    std::vector<std::uint8_t> here_, anywhere_;
    std::shared_ptr<std::vector<std::uint8_t>> travelling_;  // an operation may outlast this object
    WorkPtr work_;
    std::vector<BucketTensor> undecided_;
    std::vector<bool> has_result_;  // of any step
    bool warned_ = false;
};

// Whether any rank used the parameter in the step, as far as that is known. At the step's end.
bool used_anywhere(const ReducerParts& parts, std::int32_t param);

}  // namespace libddp
