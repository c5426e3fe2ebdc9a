#include "wire/seen_hellos.h"

namespace libddp::wire {

void SeenHellos::add(const Random& random) {
    if (!seen_.insert(random).second) return;
    order_.push_back(random);
    if (order_.size() <= kMost) return;
    seen_.erase(order_.front());
    order_.pop_front();
}

}  // namespace libddp::wire
