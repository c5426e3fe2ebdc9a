#include "comm/tag.h"

#include <utility>

namespace libddp {
namespace {

OpTag& tag_of_this_thread() {
    static thread_local OpTag tag;
    return tag;
}

}  // namespace

const OpTag& current_tag() {
    return tag_of_this_thread();
}

ScopedTag::ScopedTag(OpTag tag) : previous_(std::exchange(tag_of_this_thread(), std::move(tag))) {}
ScopedTag::~ScopedTag() {
    tag_of_this_thread() = std::move(previous_);
}

}  // namespace libddp
