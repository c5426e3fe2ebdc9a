// Norms of results, counted before gradients get them: what include/ddp/norm.h promises.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/tag.h"
#include "core/device_norms.h"
#include "core/model.h"
#include "core/norm_terms.h"
#include "core/observer.h"
#include "hooks/bucket.h"
#include "kernels/arithmetic.h"
#include "util/mutex.h"

namespace libddp {

class Norms final : public Observer {
public:
    explicit Norms(const Model& model);

    // Counts a bucket, whose result is there, unless it is counted already.
    void count(ReducerParts& parts, const ddp_bucket& bucket);
    // Whether the parameter is counted, and all numbers of its result are known to be finite.
    bool finite(std::int32_t param) const;
    // Whether each rank counts a part, so that they tell each other.
    bool exchanges(const ReducerParts& parts) const;
    // Adds up what is counted, of all ranks. flag: travels along. Returns the largest of any rank.
    // Collective if exchanges().
    std::uint8_t add_up(ReducerParts& parts, std::uint8_t flag, const OpTag& tag);

    // The norm of the last step. Between steps. Waits for devices.
    double value(std::int32_t norm);
    // Throws if gradients are clipped already, or the norm is not finite.
    double clip_factor(std::int32_t norm, double max_norm);
    // Multiplies the gradients that the norm counts by it. Returns value().
    double clip(std::int32_t norm, double max_norm);

    void on_layout(ReducerParts& parts) override;
    void on_begin(ReducerParts&) override { ended_.store(nullptr, std::memory_order_relaxed); }
    void on_bucket(ReducerParts& parts, const ddp_bucket& bucket) override { count(parts, bucket); }
    void on_end(ReducerParts& parts) override;
    void on_forget() override;

private:
    // A norm of this rank's results, or of all. It travels as bytes.
    struct Sum {
        double terms = 0;
        std::int32_t nonfinite = -1;  // the first parameter whose terms are not finite
        std::int32_t flag = 0;

        void add(double more, std::int32_t nonfinite_param, cpu::NormKind kind);
    };

    double& terms(std::int32_t param, cpu::NormKind kind) {
        return terms_[3 * static_cast<std::size_t>(param) + static_cast<std::size_t>(kind)];
    }
    const TrackedNorm& require(std::int32_t norm);
    void count_on_device(const ddp_bucket& bucket, const std::vector<DeviceNorms::Result>& results);
    // The parameters that were counted and used.
    void note_used(const ReducerParts& parts);
    void shadow(ReducerParts& parts);
    std::uint8_t exchange_terms(ReducerParts& parts, std::uint8_t flag, const OpTag& tag);
    std::uint8_t exchange_sums(ReducerParts& parts, std::uint8_t flag, const OpTag& tag);
    [[noreturn]] void damaged(ReducerParts& parts) const;
    // Waits for the terms that devices bring.
    void take_from_devices(ReducerParts& parts);
    void add_up_own(bool with_common);
    Sum own_sum(const TrackedNorm& norm, bool with_common);
    void refuse_nonfinite(std::int32_t norm, double value) const;

    const Model& model_;
    // For each parameter: the kinds of norms that count it, as bits, and its terms of each kind.
    std::vector<std::uint8_t> kinds_;
    std::vector<double> terms_;
    std::vector<std::uint8_t> counted_;        // parameters, in this step
    std::vector<std::uint8_t> used_;           // of those, in the step that has ended
    bool added_up_ = false;                    // in this step
    std::unique_ptr<DeviceNorms> on_devices_;  // null: all are on the CPU
    // Where ranks share the counting. Operations under way have it, too.
    std::shared_ptr<NormTerms> blocks_;
    Mutex mutex_;
    bool waits_ DDP_GUARDED_BY(mutex_) = false;  // for devices: sums_ are not there
    std::int64_t step_ = 0;                      // that has ended
    std::vector<Sum> sums_;                      // one for each norm
    // The owner of sums_, while they are those of the last step; otherwise null.
    std::atomic<ReducerParts*> ended_{nullptr};
    std::vector<std::uint8_t> clipped_;  // parameters, since that step
};

}  // namespace libddp
