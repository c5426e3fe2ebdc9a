// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): a gradient M travels as P Q^T, two thin matrices. This is what is
// common to its two ways, one matrix for each parameter and one for each bucket.
//
// Error feedback. Rank r adds to its gradient G_r what it has kept: M_r = G_r + E_r. It sends Q_r = M_r^T P, ranks get
// the same R = P Q^T with Q the mean (or sum) of all Q_r, and it keeps its own E_r = M_r - P Q_r^T. The mean (or sum) of
// E_r is that of M_r minus R, so that over any number of steps the sum of all R plus the mean of what is kept now is the
// sum of the true mean gradients: nothing is lost, it only comes later.
//
// PyTorch keeps M_r - R. The mean over ranks, and with it every result, is the same, but there a rank also keeps what
// distinguishes its gradients from the mean, which adds up over the steps; and a rank without a gradient in a step would
// have to keep -R, where it now keeps what it had.
#pragma once

#include "ddp/builtin_hooks.h"
#include "device/low_rank.h"
#include "hooks/hook.h"
#include "hooks/powersgd_math.h"
#include "hooks/powersgd_state.h"

namespace libddp {

class PowerSgdHook : public Hook {
public:
    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket) final;
    std::string name() const final { return name_; }
    std::string options() const final;
    void save(HookState& state) const final { state_.save(state); }
    void load(const HookState& state) final { state_.load(state); }

protected:
    PowerSgdHook(const ddp_powersgd_options& options, const char* name);

    virtual WorkPtr compress(ddp_group& group, ddp_bucket& bucket) = 0;

    // What P, Q and the error are computed in.
    static ddp_dtype compute_dtype(const ddp_bucket& bucket) { return bucket.dtype == DDP_F64 ? DDP_F64 : DDP_F32; }
    static cpu::ThinMatrix columns_of(const powersgd::Thin& thin) { return {thin.data, thin.rows}; }
    // Columns of P and Q for a matrix of n x m, or 0 if it is not worth it.
    std::size_t columns_for(std::size_t n, std::size_t m) const;
    bool feeds_back() const { return !(options_.flags & DDP_POWERSGD_NO_ERROR_FEEDBACK); }
    powersgd::State& state() { return state_; }

    // The Q that M is multiplied with: the owner's last one, or one drawn anew, orthogonalized.
    void begin_q(Kept& last, std::int32_t owner, const powersgd::Thin& q, void* workspace) const;
    // Keeps Q for the next step.
    void keep_q(Kept& last, const powersgd::Thin& q) const;
    void orthogonalize(const powersgd::Thin& matrix, void* workspace) const;
    // For the log: elements of gradients, and what was sent in their place.
    void count_elements(std::size_t before, std::size_t after);

private:
    void log_statistics(const ddp_group& group);

    const ddp_powersgd_options options_;
    const std::string name_;
    powersgd::State state_;
    std::uint64_t elements_before_ = 0, elements_after_ = 0;
    std::int64_t compressed_steps_ = 0;
};

}  // namespace libddp
