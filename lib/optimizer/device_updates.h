// Steps of pieces on devices, collected so that one launch takes many of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include "device/host_copy.h"
#include "kernels/exact_sum.h"
#include "kernels/on_device.h"
#include "kernels/updates.h"
#include "optimizer/own_piece.h"

namespace libddp {

class DeviceUpdates {
public:
    explicit DeviceUpdates(std::int64_t timeout_ms) : copies_(timeout_ms) {}

    // gradient: of the piece's first element. first, second: its arrays, if it has them. step: an
    // SgdStep or an AdamStep.
    template <class Step>
    void add(ddp_update_op op, const OwnPiece& piece, const void* gradient, std::string_view first,
             std::string_view second, const Step& step) {
        add(op, piece, gradient, first, second, step, nullptr);
    }
    // The same for DDP_UPDATE_LAMB_MEASURE, whose sums bring_norms() gives.
    void measure(const OwnPiece& piece, const void* gradient, std::string_view first,
                 std::string_view second, const cpu::AdamStep& step, cpu::ExactSum& values,
                 cpu::ExactSum& direction);
    // Enqueues what was added, in the order of the pieces' streams.
    void launch();
    // Waits for the devices.
    void bring_norms();

private:
    using Route = std::tuple<const DeviceStream*, ddp_update_op, ddp_dtype, ddp_dtype>;
    using Pair = std::pair<cpu::ExactSum*, cpu::ExactSum*>;
    // The sums of some pieces on a device, which come to the host together.
    struct Measured {
        StreamPtr stream;
        std::shared_ptr<std::byte> digits;
        std::vector<Pair> sums;
    };
    static constexpr std::size_t kTogether = 64;
    static constexpr std::size_t kBytes = 2 * sizeof(cpu::ExactSum::Digits);

    template <class Step>
    void add(ddp_update_op op, const OwnPiece& piece, const void* gradient, std::string_view first,
             std::string_view second, const Step& step, void* digits) {
        ddp_update item{piece.value(0),
                        piece.array(OwnPiece::kMaster, 0),
                        gradient,
                        piece.array(first, 0),
                        piece.array(second, 0),
                        static_cast<std::uint64_t*>(digits),
                        piece.count(),
                        {}};
        cpu::numbers_of(step, item.numbers);
        const Param& p = piece.param();
        lists_[{piece.stream().get(), op, p.dtype, p.gradient.dtype}].push_back(item);
    }

    std::map<Route, std::vector<ddp_update>> lists_;
    std::vector<Measured> measured_;
    HostCopies copies_;
};

}  // namespace libddp
