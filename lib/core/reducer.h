// The reducer: one step after another from gradients that become ready to gradients that are averaged.
//
//     idle --first grad_ready--> filling --finalize--> draining --> idle
//                                filling (no_sync) --finalize--> idle
//
// grad_ready is lock-free: a store into the parameter's slot and one atomic decrement of its bucket.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "core/bucket_store.h"
#include "core/launcher.h"
#include "core/param_table.h"
#include "core/plan.h"

namespace libddp {

struct ReducerOptions {
    std::size_t first_cap = std::size_t{1} << 20;
    std::size_t cap = std::size_t{25} << 20;
    bool mean = true;
    bool rebuild = true;
};

class Reducer {
public:
    // Plans, checks the plan with the other ranks, allocates. Collective.
    Reducer(std::shared_ptr<Group> group, const ParamTable& table, ReducerOptions options, CommHook hook);
    ~Reducer();

    void grad_ready(std::int32_t param);
    void finalize();
    void set_sync(bool sync);
    void set_hook(CommHook hook);

    // True if a rebuild is due. Both the same on every rank.
    bool wants_rebuild() const { return rebuild_due_; }
    // Collective; only between steps. True if views moved.
    bool rebuild();

    bool idle() const { return phase_.load(std::memory_order_acquire) == Phase::kIdle; }
    // Throws INVALID_STATE, saying what `call` would have to wait for, unless idle.
    void require_idle(const char* call) const;
    std::int64_t synced_steps() const { return synced_steps_; }
    const BucketStore& buckets() const { return *store_; }

private:
    enum class Phase : std::uint8_t { kIdle, kFilling, kFillingLocal, kDraining };
    enum Ready : std::uint8_t { kNo, kYes };

    // All that grad_ready touches, in one place.
    struct Slot {
        std::atomic<std::uint8_t> ready{kNo};
        bool waits_for_sync = false;  // announced in a local step, not yet reduced
        std::int32_t bucket = -1;
        std::byte* place = nullptr;
        void* grad = nullptr;  // null: view
        std::size_t count = 0;
        ddp_dtype dtype = DDP_F32;
    };

    void adopt(std::unique_ptr<BucketStore> store);
    void arm();
    Phase begin_step();
    void put_in_place(Slot& slot);
    double pack_scale(ddp_dtype dtype) const;
    void end_local_step();
    void collect_accumulated();
    [[noreturn]] void report_missing(const std::vector<std::int32_t>& missing);
    void write_back(const ddp_bucket& bucket);
    void end_synced_step();
    [[noreturn]] void wrong_phase(Phase phase, std::int32_t param) const;
    const std::string& name(std::int32_t param) const { return table_.params()[static_cast<std::size_t>(param)].name; }

    const std::shared_ptr<Group> group_;
    const ParamTable& table_;
    const ReducerOptions options_;
    Launcher launcher_;
    std::unique_ptr<BucketStore> store_;
    std::unique_ptr<Slot[]> slots_;

    std::atomic<Phase> phase_{Phase::kIdle};
    bool sync_ = true;
    bool prescale_ = false;  // divide while packing: default hook, mean, backend does not do it

    // Rank 0's ready order of the first synced step becomes the plan.
    bool recording_ = false;
    bool rebuild_due_ = false;
    std::vector<std::int32_t> ready_order_;
    std::atomic<std::uint32_t> ready_count_{0};

    std::int64_t steps_ = 0;
    std::int64_t synced_steps_ = 0;
};

}  // namespace libddp
