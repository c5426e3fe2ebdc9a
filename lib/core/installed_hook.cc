#include "core/installed_hook.h"

#include <utility>

#include "comm/link.h"
#include "util/hash.h"

namespace libddp {
namespace {

// A hook whose every result somebody takes further.
class ContinuedHook final : public Hook {
public:
    ContinuedHook(HookPtr inner, InstalledHook::Continuation continuation)
        : inner_(std::move(inner)), continuation_(std::move(continuation)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override {
        const WorkPtr work = inner_->reduce(group, bucket, tag);
        if (!work) return continuation_(bucket, tag);
        const auto next = [continuation = continuation_, &bucket](const OpTag& inherited) {
            return continuation(bucket, inherited);
        };
        return work->then(next, true, tag);
    }
    std::string name() const override { return inner_->name(); }
    bool is_allreduce() const override { return inner_->is_allreduce(); }

private:
    const HookPtr inner_;
    const InstalledHook::Continuation continuation_;
};

}  // namespace

void InstalledHook::continue_with(Continuation continuation) {
    continuation_ = std::move(continuation);
    running_ = continuation_ ? std::make_shared<ContinuedHook>(hook_, continuation_) : hook_;
}

void InstalledHook::set_group(std::shared_ptr<Group> group, const ContextNumber& number) {
    ran_.reset();
    group_ = std::move(group);
    number_ = &number;
    while (links_.size() < group_->link_count()) links_.push_back(std::make_unique<ddp_group>());
    for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->impl = group_->link(i);
}

void InstalledHook::set(HookPtr hook, const std::vector<StreamPtr>& homes) {
    hook_ = std::move(hook);
    continue_with(std::move(continuation_));
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
