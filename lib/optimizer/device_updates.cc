#include "optimizer/device_updates.h"

#include <algorithm>
#include <cstring>

namespace libddp {

void DeviceUpdates::measure(const OwnPiece& piece, const void* gradient, std::string_view first,
                            std::string_view second, const cpu::AdamStep& step,
                            cpu::ExactSum& values, cpu::ExactSum& direction) {
    auto room = std::find_if(measured_.begin(), measured_.end(), [&](const Measured& m) {
        return m.stream == piece.stream() && m.sums.size() < kTogether;
    });
    if (room == measured_.end())
        room = measured_.insert(room,
                                {piece.stream(), piece.stream()->allocate(kTogether * kBytes), {}});
    add(DDP_UPDATE_LAMB_MEASURE, piece, gradient, first, second, step,
        room->digits.get() + room->sums.size() * kBytes);
    room->sums.emplace_back(&values, &direction);
}

void DeviceUpdates::launch() {
    for (const auto& [route, items] : lists_) {
        const auto& [stream, op, values, gradients] = route;
        on_device::update(*stream, op, items, values, gradients);
    }
    lists_.clear();
}

void DeviceUpdates::bring_norms() {
    for (const Measured& m : measured_) {
        std::vector<cpu::ExactSum::Digits> digits(2 * m.sums.size());
        copies_.out(*m.stream, digits.data(), m.digits.get(), m.sums.size() * kBytes);
        for (std::size_t i = 0; i < m.sums.size(); ++i) {
            m.sums[i].first->set_digits(digits[2 * i]);
            m.sums[i].second->set_digits(digits[2 * i + 1]);
        }
    }
    measured_.clear();
}

}  // namespace libddp
