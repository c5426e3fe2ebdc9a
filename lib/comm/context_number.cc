#include "comm/context_number.h"

#include <algorithm>

#include "comm/link.h"

namespace libddp {

// A link can be a group of its own and part of another, so a number must be free on all links.
ContextNumber::ContextNumber(std::shared_ptr<Group> group) : group_(std::move(group)) {
    for (std::size_t i = 0; i < group_->link_count(); ++i)
        value_ = std::max(value_, group_->link(i)->contexts().next_number());
    for (std::size_t i = 0; i < group_->link_count(); ++i)
        group_->link(i)->contexts().take_number(value_);
}

ContextNumber::~ContextNumber() {
    for (std::size_t i = 0; i < group_->link_count(); ++i)
        group_->link(i)->contexts().forget(value_);
}

void ContextNumber::set_param_names(const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < group_->link_count(); ++i)
        group_->link(i)->contexts().name_params(value_, names);
}

}  // namespace libddp
