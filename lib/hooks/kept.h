// The state that hooks keep from step to step: numbers, and how many steps they have seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "device/stream.h"
#include "hooks/bucket.h"
#include "hooks/state.h"

namespace libddp {

// Numbers of f32 or f64: an error (one column), or a Q.
struct Kept {
    ddp_dtype dtype = DDP_F32;
    std::size_t rows = 0, columns = 0;
    std::shared_ptr<std::byte> memory;
    StreamPtr home{};  // in whose order the memory of a device is; null: of the CPU

    std::size_t count() const { return rows * columns; }
    std::size_t bytes() const;
    // New memory, zeroed.
    static Kept zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns,
                      StreamPtr home = nullptr);
    // A list that was saved, where the array says; for the CPU without copies.
    static Kept loaded(const HookState::Array& array, HostCopies* copies = nullptr);
    // A hook that is wrapped to see another type, or no longer, goes on with what it has kept.
    // False: it is of this type.
    bool convert_to(ddp_dtype wanted);
    // From the CPU to a device, for which the caller waits.
    void bring_to(const StreamPtr& wanted, HostCopies& copies);
    // Goes to memory of its own, from a block that others have too.
    void separate();
};

// For messages: "6 x 4 of f32".
std::string shape_text(const HookState::Array& array);

// The part of each parameter's gradients that was left out so far, or other numbers for each of its
// elements. By parameter, so that another layout of the buckets changes nothing.
class ErrorFeedback {
public:
    // hook: names it in messages. key: names the numbers in states.
    explicit ErrorFeedback(std::string hook, const char* key = HookState::kError)
        : hook_(std::move(hook)), key_(key) {}

    // Zeros at first. The memory of a parameter stays where it is until load(). *moved becomes true
    // if home was given something to do.
    Kept& of(std::int32_t param, std::size_t count, ddp_dtype dtype, const StreamPtr& home,
             bool* moved);
    // The memory of a bucket's parameter, in the order of the bucket's stream.
    std::byte* of(const ddp_bucket& bucket, const BucketTensor& tensor);
    // Parameters that lie in one block with others each get memory of their own.
    void separate();

    void save(HookState& state) const;
    // The numbers that a state holds. Throws INVALID_ARGUMENT, also if a parameter here has another size.
    std::map<std::int32_t, Kept> read(const HookState& state) const;
    void load(std::map<std::int32_t, Kept> errors) { errors_ = std::move(errors); }
    // Both, for a hook that keeps nothing else. keeps: whether it keeps errors.
    void load_all(const HookState& state, bool keeps);

private:
    const std::string hook_;
    const char* const key_;
    std::map<std::int32_t, Kept> errors_;
};

// How many synced steps a hook has seen, also before it was saved and loaded again.
class StepCounter {
public:
    // number: what the bucket says. Buckets of one step come with the same; resumed contexts number
    // theirs from 0 again.
    void note(std::int64_t number) {
        if (number == seen_) return;
        seen_ = number;
        ++begun_;
    }
    // The step with this number does not count, if it has begun: it comes again.
    void take_back(std::int64_t number) {
        if (number != seen_) return;
        seen_ = -1;
        --begun_;
    }
    // Steps begun, the current one included.
    std::int64_t begun() const { return begun_; }
    // Whether a saved state may say this number: it leaves room to count on.
    static bool plausible(std::int64_t begun) {
        return 0 <= begun && begun <= std::int64_t{1} << 62;
    }
    void resume(std::int64_t begun) {
        begun_ = begun;
        seen_ = -1;
    }
    // In a state. read() throws INVALID_ARGUMENT if it is not there; hook: names it in messages.
    void save(HookState& state) const { state.numbers[kSteps] = begun_; }
    static std::int64_t read(const HookState& state, const std::string& hook);

private:
    static constexpr const char* kSteps = "steps";

    std::int64_t begun_ = 0, seen_ = -1;
};

}  // namespace libddp
