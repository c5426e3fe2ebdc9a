// What PowerSGD keeps from step to step, and saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/kept.h"
#include "hooks/powersgd_site.h"
#include "hooks/state.h"
#include "hooks/step_counter.h"

namespace libddp::powersgd {

class State {
public:
    // rank: of the hook's options; a state of another is refused. whole_buckets: each Q belongs to a bucket and not to a
    // parameter. hook: names the hook in messages.
    State(std::int32_t rank, bool whole_buckets, std::string hook)
        : rank_(rank), whole_buckets_(whole_buckets), hook_(std::move(hook)) {}

    void note_step(std::int64_t number) { steps_.note(number); }
    // How many steps came before the current one.
    std::int64_t step() const { return steps_.begun() - 1; }

    // What earlier steps left out of a parameter; zeros at first. References stay valid until load(). site: of its bucket.
    Kept& error(std::int32_t param, std::size_t count, Site& site);
    // The last Q of a parameter or a bucket; without columns at first, and zero where there has been none.
    Kept& q(std::int32_t owner) { return qs_[owner]; }

    // As in Hook::set_buckets: in whose order the memory of each bucket is. Nothing where each Q belongs to a parameter.
    void set_buckets(const std::vector<StreamPtr>& homes, std::int64_t timeout_ms);
    // Errors that lie in one block each get memory of their own.
    void separate_errors();

    void save(HookState& state) const;
    void load(const HookState& state);

private:
    using Array = HookState::Array;

    std::int64_t saved_steps(const HookState& state) const;
    Kept read_error(const Array& array, HostCopies* copies) const;
    Kept read_q(const Array& array, std::int32_t owner, HostCopies* copies) const;
    std::int32_t owner_of_q(const Array& array) const;
    void check_against_error(const Array& array, const Kept& q, const std::map<std::int32_t, Kept>& errors) const;

    const std::int32_t rank_;
    const bool whole_buckets_;
    const std::string hook_;
    StepCounter steps_;
    std::map<std::int32_t, Kept> errors_, qs_;
    std::vector<StreamPtr> homes_;  // of buckets
};

}  // namespace libddp::powersgd
