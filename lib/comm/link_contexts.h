// The contexts on a link: the number of the next one, and the names of their parameters, for
// messages. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "util/mutex.h"

namespace libddp {

class LinkContexts {
public:
    std::int32_t next_number() const {
        const Lock lock(mutex_);
        return next_;
    }
    void take_number(std::int32_t number) {
        const Lock lock(mutex_);
        next_ = number + 1;
    }
    void name_params(std::int32_t number, std::vector<std::string> names) {
        const Lock lock(mutex_);
        param_names_[number] = std::move(names);
    }
    void forget(std::int32_t number) {
        const Lock lock(mutex_);
        param_names_.erase(number);
    }
    // Empty: unknown.
    std::string param_name(std::int32_t number, std::int32_t param) const {
        const Lock lock(mutex_);
        const auto found = param_names_.find(number);
        const auto index = static_cast<std::size_t>(param);
        return found == param_names_.end() || index >= found->second.size() ? ""
                                                                            : found->second[index];
    }

private:
    mutable Mutex mutex_;
    std::int32_t next_ DDP_GUARDED_BY(mutex_) = 0;
    // of the contexts that exist
    std::map<std::int32_t, std::vector<std::string>> param_names_ DDP_GUARDED_BY(mutex_);
};

}  // namespace libddp
