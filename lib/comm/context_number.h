// Which context of a group a collective belongs to. Ranks number the contexts of a group in the
// order in which they make them, and compare the number in the signature of every collective of a
// context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"

namespace libddp {

class ContextNumber {
public:
    // Takes the next number of this group, on all of its links.
    explicit ContextNumber(std::shared_ptr<Group> group);
    ~ContextNumber();
    ContextNumber(const ContextNumber&) = delete;
    ContextNumber& operator=(const ContextNumber&) = delete;

    // For messages.
    void set_param_names(const std::vector<std::string>& names);
    // The first parameter that is frozen; -1: none.
    void set_frozen(std::int32_t param) { frozen_ = param; }
    std::int32_t value() const { return value_; }
    // The tag of the context's collectives.
    OpTag tag() const { return {.facts = {.context = value_, .frozen = frozen_}}; }
    OpTag tag(Purpose purpose) const { return tag().with(purpose); }

private:
    const std::shared_ptr<Group> group_;
    std::int32_t value_ = 0, frozen_ = -1;
};

}  // namespace libddp
