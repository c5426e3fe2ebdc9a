// The purpose of an operation. It travels in the signature that ranks compare and in messages.
// Every call that submits an operation takes it as an argument, and hooks and continuations get the
// tag for the operations that they submit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/stream.h"
#include "record/operation.h"

namespace libddp {

class Comparisons;
class Link;
class Queue;

// The facts of an operation that ranks compare, beside the collective itself.
struct OpFacts {
    std::uint64_t plan = 0;  // hash of the bucket plan, 0 outside a context
    std::int64_t step = -1;
    std::int64_t synced_steps = -1;  // of the context before this step
    std::int32_t bucket = -1;
    std::int32_t context = -1;  // the number of the context on its group; -1 outside a context
    std::int32_t frozen = -1;   // the context's first parameter that is frozen; -1: none
    std::uint32_t hook = 0;     // a hash of the communication hook and its options; 0: none
    Purpose purpose = Purpose::kProgram;
};

// In whose order an operation runs.
struct OpOrder {
    // In a hook and its continuations the bucket's, in other continuations that of the work that
    // they continue, wherever they run. Null elsewhere.
    std::shared_ptr<Queue> queue{};
    // For operations on device memory, and their continuations. Null: there are none.
    StreamPtr stream{};
};

// The memory that an operation keeps.
struct OpMemory {
    std::shared_ptr<const void> used{};  // what it reads and writes: as long as it runs
    // The part that a device goes on using after the operation was enqueued; null: all of it.
    std::shared_ptr<const void> enqueued{};
    // Counts the program's own works that may still use what their continuations were given; null:
    // nobody wants to know.
    std::shared_ptr<std::atomic<std::int32_t>> borrowers{};
};

// Counts of operations, for callers that ask for them.
struct Traffic {
    // Relaxed: figures for the program.
    std::atomic<std::uint64_t> sent{0};  // bytes given to collectives
    // bytes that a transport copied from and to memory of its own
    std::atomic<std::uint64_t> copied{0};
};

// Words of each rank that travel with the first operation of a link that has the tag, if its
// transport can carry them.
struct CarriedWords {
    const Link* link = nullptr;  // null: no operation takes them
    bool taken = false;          // all ranks' operations did, or none
    std::uint64_t words[2]{};    // this rank's; of all ranks, by OR, when that operation has ended
};

struct OpTag {
    OpFacts facts{};
    OpOrder order{};
    OpMemory memory{};
    std::shared_ptr<Traffic> traffic{};          // of a hook; may be null
    std::shared_ptr<const std::string> label{};  // "parameters 'a' to 'f'", for messages
    // Takes what ranks compare behind the operation, if it is of a device's own backend. Null: they
    // compare before it.
    std::shared_ptr<Comparisons> comparisons{};
    std::shared_ptr<CarriedWords> carried{};  // may be null

    // The tag of an operation of libddp's own that belongs to nothing else.
    static OpTag of(Purpose purpose) { return {.facts = {.purpose = purpose}}; }
    OpTag with(Purpose purpose) const {
        OpTag tag = *this;
        tag.facts.purpose = purpose;
        return tag;
    }
    // For an operation on memory of this stream's device; null: of the CPU.
    OpTag on(StreamPtr stream) const {
        OpTag tag = *this;
        tag.order.stream = std::move(stream);
        return tag;
    }
    // For an operation that uses this memory, and once it is enqueued on a device only
    // `still_used`, if not null.
    OpTag keeping(std::shared_ptr<const void> used,
                  std::shared_ptr<const void> still_used = nullptr) const {
        OpTag tag = *this;
        tag.memory.used = std::move(used);
        tag.memory.enqueued = std::move(still_used);
        return tag;
    }
};

// The tag for what the program submits on this thread: that of the hook or continuation which it is
// in. Only the C ABI reads it, because the program has no argument for it.
const OpTag& current_tag();

// Sets it while a function of the program runs.
class ScopedTag {
public:
    explicit ScopedTag(OpTag tag);
    ~ScopedTag();
    ScopedTag(const ScopedTag&) = delete;
    ScopedTag& operator=(const ScopedTag&) = delete;

private:
    OpTag previous_;
};

}  // namespace libddp
