// How far a rank is in the operations of a group, and what it tells of that in the store: the count
// of operations that it has begun, and after a space a text.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "comm/signature.h"
#include "util/mutex.h"

namespace libddp {

class Progress {
public:
    // This rank is about to run the operation.
    void begins(const Signature& operation);
    void ends() { ended_.store(begun(), std::memory_order_relaxed); }

    // How many operations have begun.
    std::int64_t begun() const { return begun_.load(std::memory_order_relaxed); }
    // The operation that this rank is in: "allreduce of 4 f32 (sum)"; empty: none.
    std::string under_way() const;

private:
    // Relaxed: what goes with them is under the lock, or nothing does.
    std::atomic<std::int64_t> begun_{0}, ended_{0};
    mutable Mutex mutex_;
    // the newest, which is under way if ended_ < begun_
    Signature operation_ DDP_GUARDED_BY(mutex_){};
};

// The parts of what a rank told. name: the key, for an error.
std::int64_t begun_in(const std::string& told, const std::string& name);
std::string text_in(const std::string& told);

}  // namespace libddp
