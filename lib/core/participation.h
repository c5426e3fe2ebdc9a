// Which parameters take part in steps: what is frozen, skipped for one step, or known to be unused (static graph); and which were
// used in a step, here and on any rank (Li et al. 2020, section 3.2.3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
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

    // Of all that must be the same on every rank. 0: everything takes part.
    std::uint64_t hash() const;

private:
    const ParamTable& table_;
    std::vector<bool> frozen_, skipped_;
    bool any_skipped_ = false;
    bool recorded_ = false;
    std::vector<std::uint8_t> here_, anywhere_;
};

// Which parameters were used in a step.
class UsedMap {
public:
    explicit UsedMap(std::size_t count);

    void clear();
    void mark(std::int32_t param) { here_[static_cast<std::size_t>(param)] = 1; }
    // Asks the other ranks. The answer is there after wait(). tag: the step's.
    void exchange(Group& group, const OpTag& tag);
    // Throws what went wrong.
    void wait();
    // Instead of an exchange: what is used here is what counts.
    void assume_local() { anywhere_ = here_; }

    const std::vector<std::uint8_t>& here() const { return here_; }
    const std::vector<std::uint8_t>& anywhere() const { return anywhere_; }

private:
    std::vector<std::uint8_t> here_, anywhere_;
    std::shared_ptr<std::vector<std::uint8_t>> travelling_;  // an operation may outlast this object
    WorkPtr work_;
};

}  // namespace libddp
