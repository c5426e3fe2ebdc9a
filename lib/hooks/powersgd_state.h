// What PowerSGD keeps from step to step, and saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "hooks/state.h"

namespace libddp::powersgd {

// Numbers of f32 or f64: an error (one column), or a Q.
struct Kept {
    ddp_dtype dtype = DDP_F32;
    std::size_t rows = 0, columns = 0;
    std::shared_ptr<std::byte> memory;

    std::size_t count() const { return rows * columns; }
    std::size_t bytes() const;
    // New memory, zeroed.
    static Kept zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns);
    void convert_to(ddp_dtype wanted);
    void copy_from(const void* values, ddp_dtype type, std::size_t row_count, std::size_t column_count);
};

class State {
public:
    // rank: of the hook's options; a state of another is refused. whole_buckets: each Q belongs to a bucket and not to a
    // parameter. hook: names the hook in messages.
    State(std::int32_t rank, bool whole_buckets, std::string hook)
        : rank_(rank), whole_buckets_(whole_buckets), hook_(std::move(hook)) {}

    // Counts synced steps. Buckets of the same one come with the same number; resumed contexts number theirs from 0
    // again.
    void note_step(std::int64_t number) {
        if (number == seen_) return;
        seen_ = number;
        ++begun_;
    }
    // How many steps came before the current one.
    std::int64_t step() const { return begun_ - 1; }

    // What earlier steps left out of a parameter; zeros at first. References stay valid until load().
    Kept& error(std::int32_t param, ddp_dtype dtype, std::size_t count);
    // The last Q of a parameter or a bucket; without columns at first.
    Kept& q(std::int32_t owner) { return qs_[owner]; }

    void save(HookState& state) const;
    void load(const HookState& state);

private:
    using Array = HookState::Array;

    std::int64_t saved_steps(const HookState& state) const;
    Kept read_error(const Array& array) const;
    Kept read_q(const Array& array) const;
    std::int32_t owner_of_q(const Array& array) const;
    void check_against_error(const Array& array, const Kept& q, const std::map<std::int32_t, Kept>& errors) const;

    const std::int32_t rank_;
    const bool whole_buckets_;
    const std::string hook_;
    std::int64_t begun_ = 0;
    std::int64_t seen_ = -1;
    std::map<std::int32_t, Kept> errors_, qs_;
};

}  // namespace libddp::powersgd
