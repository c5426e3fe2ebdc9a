#include "core/step_votes.h"

#include <bit>
#include <iterator>
#include <vector>

namespace libddp {
namespace {

std::uint32_t bits_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word);
}

}  // namespace

const std::shared_ptr<CarriedWords>& StepVotes::depart(const Step& step, const Link* link) {
    cast(launcher_.take());
    mine_ = cast_.exchange(0, std::memory_order_relaxed);
    departed_ = true;
    // An operation of a group that the context has left may still have the old one.
    if (!carried_ || carried_.use_count() > 1) carried_ = std::make_shared<CarriedWords>();
    *carried_ = {link, false, {mine_ | passed_on_, 0}};
    // The second word has what a rank has not cast. A rank without inputs cannot cast anything.
    if (step.end != Step::End::kShadowed) carried_->words[1] = static_cast<std::uint32_t>(~mine_);
    return carried_;
}

void StepVotes::end(Group& group, const Step& step, const OpTag& tag) {
    if (!departed_) depart(step, nullptr);
    std::uint64_t* const words = carried_->words;
    if (group.world() > 1 && !carried_->taken) {
        const std::size_t count = std::size(carried_->words);
        std::vector<std::uint64_t> all(count * static_cast<std::size_t>(group.world()));
        group.run({DDP_COLLECTIVE_ALLGATHER, words, all.data(), sizeof carried_->words, DDP_U8},
                  tag);
        for (std::size_t i = 0; i < all.size(); ++i) words[i % count] |= all[i];
    }
    outcome_ = {bits_of(words[0]), ~bits_of(words[1]), std::popcount(words[0] >> 32)};
    last_ = mine_;
    heard_ = words[0];
    passed_on_ = 0;
    ended_ = true;
}

void StepVotes::on_forget() {
    if (!ended_) {
        outcome_ = {};
        if (departed_) cast_.fetch_or(mine_, std::memory_order_relaxed);
    }
    departed_ = ended_ = false;
}

}  // namespace libddp
