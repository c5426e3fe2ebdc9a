#include "comm/progress.h"

#include "util/options.h"

namespace libddp {

void Progress::begins(const Signature& operation) {
    {
        const Lock lock(mutex_);
        operation_ = operation;
    }
    begun_.store(operation.sequence + 1, std::memory_order_relaxed);
}

std::string Progress::under_way() const {
    const Lock lock(mutex_);
    return ended_ < begun_ ? describe(operation_) : "";
}

std::int64_t begun_in(const std::string& told, const std::string& name) {
    return parse_int(told.substr(0, told.find(' ')), 0, INT64_MAX, name);
}

std::string text_in(const std::string& told) {
    const auto space = told.find(' ');
    return space == std::string::npos ? "" : told.substr(space + 1);
}

}  // namespace libddp
