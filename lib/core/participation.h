// Which parameters take part in steps: what is frozen, skipped for one step, or known to be unused
// (static graph).
#pragma once

#include <cstdint>
#include <vector>

#include "core/param_table.h"

namespace libddp {

enum class Role : std::uint8_t {
    kExpected,    // the gradient comes, unless this step finds out that it does not
    kAbsentHere,  // other ranks have one; this one gives zeros
    kAbsent,      // no rank has one: nothing is sent for it, its memory is left alone
    kIgnored      // none of the library's business
};

class Participation {
public:
    explicit Participation(const ParamTable& table);

    void freeze(const std::vector<std::int32_t>& params, bool frozen);
    void skip(const std::vector<std::int32_t>& params);
    // The skipped take part again.
    void end_skipping();
    // From now on exactly these parameters are used: on this rank, and on any.
    void record(const std::vector<std::uint8_t>& here, const std::vector<std::uint8_t>& anywhere);
    bool recorded() const { return recorded_; }
    void forget_record() { recorded_ = false; }

    Role role(std::int32_t param) const;
    bool frozen(std::int32_t param) const { return frozen_[static_cast<std::size_t>(param)]; }
    bool skipped(std::int32_t param) const { return skipped_[static_cast<std::size_t>(param)]; }

    // A hash of all that must be the same on every rank. 0: everything takes part.
    std::uint64_t hash() const;

private:
    const ParamTable& table_;
    std::vector<bool> frozen_, skipped_;
    bool any_skipped_ = false;
    bool recorded_ = false;
    std::vector<std::uint8_t> here_, anywhere_;
};

}  // namespace libddp
