#include "core/installed_hook.h"

#include <utility>

#include "comm/link.h"
#include "util/hash.h"

namespace libddp {

void InstalledHook::set_group(std::shared_ptr<Group> group, const ContextNumber& number) {
    ran_.reset();
    group_ = std::move(group);
    number_ = &number;
    while (links_.size() < group_->link_count()) links_.push_back(std::make_unique<ddp_group>());
    for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->impl = group_->link(i);
}

void InstalledHook::set(HookPtr hook, const std::vector<StreamPtr>& homes) {
    hook_ = std::move(hook);
    hash_ = static_cast<std::uint32_t>(Hash().add(hook_->name()).add(hook_->options()).value());
    bytes_in_ = 0;
    if (traffic_) copied_before_ = copied_bytes();
    traffic_ = std::make_shared<Traffic>();
    tell_buckets(homes);
}

void InstalledHook::tell_buckets(const std::vector<StreamPtr>& homes) {
    ran_.reset();
    hook_->set_buckets({homes, group_->timeout_ms()});
}

OpFacts InstalledHook::facts(Purpose purpose) const {
    OpFacts facts = number_->tag(purpose).facts;
    facts.hook = hash_;
    return facts;
}

}  // namespace libddp
