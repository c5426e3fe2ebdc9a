#include "comm/tag.h"

#include <utility>

namespace libddp {
namespace {

OpTag& slot() {
    static thread_local OpTag tag;
    return tag;
}

}  // namespace

const OpTag& current_tag() {
    return slot();
}

ScopedTag::ScopedTag(OpTag tag) : previous_(std::exchange(slot(), std::move(tag))) {}
ScopedTag::~ScopedTag() {
    slot() = std::move(previous_);
}

}  // namespace libddp
