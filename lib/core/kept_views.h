// The contents of gradient views that must come through a reduction unchanged: while their bucket travels, zeros stand
// in their place.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "hooks/bucket.h"

namespace libddp {

class KeptViews {
public:
    void keep(std::int32_t param, const void* view, std::size_t bytes) {
        const auto* begin = static_cast<const std::byte*>(view);
        std::vector<std::byte> copy(begin, begin + bytes);
        const std::lock_guard lock(mutex_);
        kept_.insert_or_assign(param, std::move(copy));
    }
    void give_back(std::int32_t param, void* view) {
        const std::lock_guard lock(mutex_);
        auto found = kept_.find(param);
        if (found != kept_.end() && !found->second.empty())
            std::memcpy(view, found->second.data(), found->second.size());
    }
    void clear() { kept_.clear(); }

private:
    std::mutex mutex_;
    std::map<std::int32_t, std::vector<std::byte>> kept_;
};

// Copies from where a hook left a bucket's result into one gradient. target null: the gradient's place in the bucket (view). False if the result was there already.
bool write_back(const ddp_bucket& bucket, const BucketTensor& tensor, void* target);

}  // namespace libddp
