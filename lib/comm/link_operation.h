// One collective of a link on its way: numbered, compared, scaled, run.
#pragma once

#include <cstdint>

#include "comm/executor.h"
#include "comm/group.h"
#include "comm/signature.h"
#include "comm/tag.h"

namespace libddp {

class Link;

inline bool reduces(ddp_collective_kind kind) {
    return kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_REDUCE_SCATTER;
}

// Every function runs with the turn of the link's executor.
class LinkOperation final : public Operation {
public:
    LinkOperation(Link& link, const Collective& collective, OpTag tag)
        : link_(link), collective_(collective), tag_(std::move(tag)) {
        if (on_device()) submitted_ = tag_.stream->record();
    }

    bool ready() override;
    ErrorInfo run() noexcept override;

private:
    bool on_device() const { return !is_cpu(collective_.device); }
    void begin();
    bool ready_on_device();
    void run_scaled();
    ErrorInfo disagree(std::int32_t other);
    ErrorInfo resolve(ErrorInfo error);

    Link& link_;
    const Collective collective_;
    const OpTag tag_;
    EventPtr submitted_;  // on a device: where the tag's stream was then
    bool begun_ = false;
    bool checked_ = false;  // ranks compare what they are about to do
    double scale_after_ = 1;
    Signature mine_{}, theirs_{};
    ddp_collective op_{};
    std::uint64_t copied_ = 0;
};

}  // namespace libddp
