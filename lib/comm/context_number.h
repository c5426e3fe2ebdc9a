// Which context of a group a collective belongs to. Ranks number the contexts of a group in the order in which they make
// them, and compare the number in the signature of every collective of a context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/group.h"

namespace libddp {

class ContextNumber {
public:
    // Takes the next number of this group, on all of its links.
    explicit ContextNumber(std::shared_ptr<Group> group);
    ~ContextNumber();
    ContextNumber(const ContextNumber&) = delete;
    ContextNumber& operator=(const ContextNumber&) = delete;

    // For messages: a name by which the program knows the context.
    void set_name(const std::string& name);
    std::int32_t value() const { return value_; }
    // Of the context's collectives.
    OpTag tag() const {
        OpTag tag;
        tag.context = value_;
        return tag;
    }
    OpTag tag(Purpose purpose) const { return tag().with(purpose); }

private:
    const std::shared_ptr<Group> group_;
    std::int32_t value_ = 0;
};

}  // namespace libddp
