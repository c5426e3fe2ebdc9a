// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): a gradient M travels as P Q^T, two thin
// matrices. It has two ways, one matrix for each parameter and one for each bucket.
//
// Error feedback. Rank r adds to its gradient G_r what it has kept: M_r = G_r + E_r. It sends Q_r =
// M_r^T P, ranks get the same R = P Q^T with Q the mean (or sum) of all Q_r, and it keeps its own
// E_r = M_r - P Q_r^T. The mean (or sum) of E_r is that of M_r minus R, so that over any number of
// steps the sum of all R plus the mean of what is kept now is the sum of the true mean gradients:
// nothing is lost, it only comes later.
//
// PyTorch keeps M_r - R. The mean over ranks, and with it every result, is the same, but there a
// rank also keeps what distinguishes its gradients from the mean, which adds up over the steps; and
// a rank without a gradient in a step would have to keep -R, where it now keeps what it had.
#pragma once

#include <map>
#include <memory>

#include "device/scratch.h"
#include "hooks/hook.h"
#include "hooks/job.h"
#include "hooks/powersgd_state.h"

namespace libddp {

struct PowerSgdOptions {
    enum class Method { kAuto, kGramSchmidt, kQr };

    std::int32_t rank = 1;
    std::int64_t start_step = 1000;
    double min_rate = 2;
    double epsilon = 0;
    std::uint64_t seed = 0;
    std::int64_t stats_interval = 10000;
    bool error_feedback = true, warm_start = true;
    Method orthogonalization = Method::kAuto;
};

// The base of both kinds of PowerSGD.
class PowerSgdHook : public Hook {
public:
    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) final;
    void set_buckets(const Buckets& buckets) override {
        state_.set_buckets(buckets.homes, buckets.timeout_ms);
    }
    std::string name() const final { return name_; }
    std::string options() const final;
    void forget_step(std::int64_t step) final { state_.forget_step(step); }
    std::int64_t steps() const final { return state_.steps(); }
    void resume(std::int64_t steps) final { state_.resume(steps); }
    void save(HookState& state) const final { state_.save(state); }
    void load(const HookState& state) final { state_.load(state); }

protected:
    PowerSgdHook(const PowerSgdOptions& options, const char* name, bool whole_buckets)
        : options_(options), name_(name), state_(options.rank, whole_buckets, name) {}

    virtual WorkPtr compress(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) = 0;

    // Columns of P and Q for a matrix of n x m, or 0 if it is not worth it.
    std::size_t columns_for(std::size_t n, std::size_t m) const;
    bool feeds_back() const { return options_.error_feedback; }
    bool starts_warm() const { return options_.warm_start; }
    powersgd::State& state() { return state_; }

    // The random numbers of this step, and the method that makes matrices orthogonal.
    ddp_thin_rules rules() const {
        return {options_.seed, options_.epsilon, static_cast<std::uint32_t>(state_.step())};
    }
    bool uses_qr(std::size_t columns) const;
    // The owner's last Q of this shape, or zeros; null without a warm start.
    void* last_q(std::int32_t owner, std::size_t rows, std::size_t columns, powersgd::Site& site);
    // The Q that M is multiplied with: the last one, in which columns of zeros are drawn anew,
    // orthogonalized.
    static void begin(const powersgd::Site& site, const std::vector<ddp_thin>& qs,
                      const ddp_thin_rules& rules);
    // The sum of all P, the sum or mean of all Q, and what follows each.
    template <class Job, class Back, class End>
    static WorkPtr exchange(Group& group, const std::shared_ptr<Job>& job, ddp_reduce_op op,
                            const OpTag& tag, Back project_back, End restore) {
        const auto submit = [&group, job](const OpTag& with, const void* from,
                                          const ScratchMemory& to, std::size_t count,
                                          ddp_reduce_op how) {
            return group.submit({DDP_COLLECTIVE_ALLREDUCE, from, to.get(), count,
                                 job->site.compute(), how, 0, job->site.device()},
                                with.keeping(job, to.on_device()));
        };
        const powersgd::ThinMatrices& thin = job->thin;
        return submit(tag, nullptr, thin.p, thin.p_count, DDP_SUM)
            ->then(
                [job, submit, op, project_back](const OpTag& inherited) {
                    project_back(*job);
                    const powersgd::ThinMatrices& sent = job->thin;
                    return submit(inherited, sent.own_q.get(), sent.q, sent.q_count, op);
                },
                true, tag)
            ->then(
                // The bucket's memory too must last until here.
                [job, restore, gradients = tag.memory.used](const OpTag&) -> WorkPtr {
                    restore(*job);
                    return nullptr;
                },
                true, tag);
    }
    // For the log: elements of gradients, and what was sent in their place.
    void count_elements(std::size_t before, std::size_t after);

private:
    void log_statistics(const ddp_group& group);

    const PowerSgdOptions options_;
    const std::string name_;
    powersgd::State state_;
    std::uint64_t elements_before_ = 0, elements_after_ = 0;
    std::int64_t compressed_steps_ = 0;
};

// One matrix for each parameter.
class LayeredPowerSgdHook final : public PowerSgdHook {
public:
    explicit LayeredPowerSgdHook(const PowerSgdOptions& options)
        : PowerSgdHook(options, "powersgd", false) {}

private:
    struct Job;

    void set_buckets(const Buckets& buckets) override;
    WorkPtr compress(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void lay_out(const ddp_bucket& bucket, Job& job);
    static void project(const Job& job);
    static void project_back(const Job& job);
    static void restore(const Job& job);

    JobPool<Job> jobs_;
};

// One square matrix for each bucket: its elements in order, with zeros after them. Errors still
// belong to parameters, so that other buckets may hold them in a later step.
class BatchedPowerSgdHook final : public PowerSgdHook {
public:
    explicit BatchedPowerSgdHook(const PowerSgdOptions& options)
        : PowerSgdHook(options, "batched_powersgd", true) {}

    bool depends_on_buckets() const override { return true; }

private:
    struct Job;

    void set_buckets(const Buckets& buckets) override;
    WorkPtr compress(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    std::shared_ptr<std::byte> errors_of(const ddp_bucket& bucket, powersgd::Site& site);
    void lay_out(const ddp_bucket& bucket, std::size_t side, std::size_t columns, Job& job);
    static void project(const Job& job);
    static void project_back(const Job& job);
    static void restore(const Job& job);

    JobPool<Job> jobs_;
    // By bucket: the errors of its parameters, laid out as the bucket is, and so a matrix of the
    // same shape. They are kept alive by the parameters' states, which point into them.
    std::map<std::int32_t, std::weak_ptr<std::byte>> blocks_;
};

}  // namespace libddp
