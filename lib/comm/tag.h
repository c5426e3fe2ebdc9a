// What an operation is for. It travels in the signature that ranks compare and in messages; hooks and continuations
// inherit it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "device/stream.h"

namespace libddp {

class Executor;

// What operations did, counted by whoever wants to know.
struct Traffic {
    std::atomic<std::uint64_t> sent{0};    // bytes given to collectives
    std::atomic<std::uint64_t> copied{0};  // bytes that a transport copied from and to memory of its own
};

// What an operation of libddp's own is for, where it belongs to no bucket. Ranks compare it; its text is in signature.cc.
enum class Purpose : std::int32_t {
    kProgram,  // the program's own, or a bucket's
    kSplit,
    kRoundRobin,
    kModel,
    kPlan,
    kState,
    kStepBegin,
    kReadyOrder,
    kSkip,
    kSetGroup,
    kUsedMap,
    kDiscard,
    kAverage,
    kValues,
    kEndOfCheck
};

struct OpTag {
    std::uint64_t plan = 0;  // hash of the bucket plan, 0 outside a context
    std::int64_t step = -1;
    std::int32_t bucket = -1;
    std::shared_ptr<const std::string> label;  // "parameters 'a' to 'f'"; not compared
    std::shared_ptr<const void> memory;        // what the operation reads and writes: kept as long as it runs
    // Whose order must be kept to: in a hook and its continuations the bucket's, in other continuations that of the work
    // they continue, wherever they run. Null elsewhere.
    std::shared_ptr<Executor> executor;
    std::shared_ptr<Traffic> traffic{};  // of a hook; may be null
    // With whose order operations on device memory, and their continuations, keep in step. Null: there are none.
    StreamPtr stream{};
    // Of `memory`, what a device goes on using after the operation was enqueued; null: all of it.
    std::shared_ptr<const void> enqueued{};
    std::int64_t synced_steps = -1;  // of the context before this step
    Purpose purpose = Purpose::kProgram;
};

// The tag that operations submitted by this thread get.
const OpTag& current_tag();

class ScopedTag {
public:
    explicit ScopedTag(OpTag tag);
    ~ScopedTag();
    ScopedTag(const ScopedTag&) = delete;
    ScopedTag& operator=(const ScopedTag&) = delete;

private:
    OpTag previous_;
};

// The calling thread's tag with another purpose.
class ScopedPurpose {
public:
    explicit ScopedPurpose(Purpose purpose) : tag_(with(purpose)) {}

private:
    static OpTag with(Purpose purpose) {
        OpTag tag = current_tag();
        tag.purpose = purpose;
        return tag;
    }

    const ScopedTag tag_;
};

}  // namespace libddp
