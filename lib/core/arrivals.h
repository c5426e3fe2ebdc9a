// Gradients come in: the program announces them, and each goes into its bucket.
//
// grad_ready is lock-free: an increment of the parameter's count of announcements and a decrement
// of its bucket's count of gradients that it waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/reducer_parts.h"

namespace libddp {

class Arrivals {
public:
    explicit Arrivals(ReducerParts& parts)
        : parts_(parts), states_(parts.gradients.data()), count_(parts.model.table.size()) {}

    // announced: for each parameter, where its last step is recorded; null: nothing is recorded.
    void record_in(record::AnnouncedStep* announced) { announced_ = announced; }

    // stream: none: the caller's.
    void grad_ready(std::int32_t param);
    void grad_ready_on(std::int32_t param, void* stream);
    // add: to what is there since the last synced step, if anything is.
    void put(std::int32_t param, const void* gradient, bool add);
    void put_on(std::int32_t param, const void* gradient, bool add, void* stream);
    void grad_ready_sparse(std::int32_t param, const std::int64_t* indices, const void* values,
                           std::size_t count);
    void grad_ready_factors(std::int32_t param, const void* left, const void* right,
                            std::size_t rows);
    void mark_unused(const std::vector<std::int32_t>& params);

    // Every gradient that is expected is accounted for: those that were announced in local steps
    // only are complete now, and any other that is not ready never will be. Breaks the group if one
    // is missing.
    void close();

private:
    template <class Check, class Give>
    void announce(std::int32_t param, ParamState& s, Check check, Give give);
    void take_dense(std::int32_t param, ParamState& s) {
        if (s.factored) [[unlikely]]
            take_whole(param, s);
        s.given.store(false, std::memory_order_relaxed);
    }
    void take_whole(std::int32_t param, const ParamState& s);
    void take_copy(std::int32_t param, ParamState& s, const void* gradient, bool add, void* stream);
    Phase look() const;
    Phase begin(Phase phase);
    void require_filling(Phase phase) const;
    void require_unannounced(std::int32_t param, std::int32_t calls) const;
    void refuse_dense(std::int32_t param, const ParamState& s) const;
    void mark_unused(std::int32_t param);
    void note_announced(std::int32_t param) {
        if (announced_)
            announced_[param] = static_cast<record::AnnouncedStep>(parts_.totals.steps + 1);
    }
    void put_in_place(std::int32_t param, ParamState& s);
    void put_zeros(std::int32_t param, ParamState& s, bool keep);
    void put_unused(std::int32_t param, ParamState& s);
    [[noreturn]] void refuse(std::int32_t param, const ParamState& s, std::int32_t calls) const;
    void require_complete() const;
    [[noreturn]] void report_missing(const std::vector<std::int32_t>& missing) const;
    const std::string& name(std::int32_t param) const { return parts_.model.table[param].name; }

    ReducerParts& parts_;
    ParamState* const states_;
    const std::int32_t count_;
    record::AnnouncedStep* announced_ = nullptr;
};

}  // namespace libddp
