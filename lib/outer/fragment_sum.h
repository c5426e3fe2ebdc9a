// The mean of a fragment's values over all ranks, while it is on its way: in memory of its own, so
// that the program goes on with its parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "core/context.h"
#include "device/host_copy.h"
#include "hooks/state.h"

namespace libddp {

// Values travel together, at most this much at a time. A multiple of the size of every element.
inline constexpr std::size_t kMessageBytes = std::size_t{25} << 20;

// Whether libddp averages its value.
bool has_average(const Param& param);

// Parameters whose values are of one type and on one device. Null: of the CPU.
struct SumBatch {
    ddp_dtype dtype;
    StreamPtr stream;
    std::vector<std::int32_t> params;
};
// In an order that is the same on every rank, although the numbers of their devices may differ.
std::vector<SumBatch> batches_of(const Context& context, const std::vector<std::int32_t>& params);

// The type of the numbers of a fragment in memory. sent_dtype: of ddp_outer_options; stored: the
// parameters'.
ddp_dtype number_dtype(ddp_dtype sent_dtype, ddp_dtype stored);

class FragmentSum {
public:
    // A parameter's numbers in the memory of a part.
    struct Numbers {
        std::int32_t param;
        std::size_t offset, bytes;
    };
    // The stream: null for memory of the CPU; otherwise the part's own, because the context's streams
    // do not wait for the sum.
    struct Part {
        ddp_dtype dtype;
        StreamPtr stream;
        std::shared_ptr<std::byte> memory;
        std::vector<Numbers> numbers;
        std::size_t bytes = 0;
    };
    // due: the step in which it is mixed in.
    struct Facts {
        std::int32_t fragment = 0;
        std::int64_t due = 0;
        ddp_dtype sent_dtype = 0;  // 0: values; otherwise outer gradients, of DDP_U8 in 8 bits
    };

    FragmentSum(Facts facts, std::vector<Part> parts) : facts_(facts), parts_(std::move(parts)) {}

    // Queues it. Nothing travels in a group of one rank.
    void submit(const std::shared_ptr<Group>& group, const OpTag& tag);
    // Whether it is of this group, or of none, because it was loaded.
    bool fits(const std::shared_ptr<Group>& group) const {
        return !sent_ || group_.lock() == group;
    }
    // Throws what broke the group.
    void wait() const;

    const Facts& facts() const { return facts_; }
    // Its parameters, in their order.
    std::vector<std::int32_t> params() const;
    // The mean of a parameter, after wait(): in memory of the part, or from a device in `fetched`.
    std::byte* mean(std::int32_t param, HostCopies& copies, std::vector<std::byte>& fetched) const;

    // Waits for the mean, which is the same on every rank. fetched: what devices had of it, as long as
    // the state is used.
    void save(HookState& state, std::int64_t timeout_ms,
              std::vector<std::vector<std::byte>>& fetched) const;
    // None if there was none on its way. Throws INVALID_ARGUMENT.
    static std::optional<FragmentSum> load(const HookState& state, const ParamTable& table);

private:
    void submit_whole(Group& group, const Part& part, const OpTag& tag);
    void submit_in_8_bits(Group& group, const Part& part, const OpTag& tag);

    Facts facts_;
    std::vector<Part> parts_;
    std::vector<WorkPtr> works_;
    std::weak_ptr<Group> group_;
    bool sent_ = false;
};

}  // namespace libddp
