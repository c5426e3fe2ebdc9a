// The kinds of optimizers: what each may be set to, what it keeps, and one step of it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kernels/exact_sum.h"
#include "optimizer/device_updates.h"
#include "optimizer/own_piece.h"
#include "optimizer/settings.h"

namespace libddp {

// Sums of squares over a whole parameter.
struct ParamNorms {
    cpu::ExactSum values, direction;
};

// One step of a piece, or of some of its elements, whose number of steps includes it. gradient: of
// the first of them. device: takes the step of a whole piece on a device; null on the CPU.
struct Update {
    OwnPiece& piece;
    const void* gradient;
    const Settings& settings;
    double scale;
    DeviceUpdates* device;
    std::size_t first = 0, count = piece.count();
    ParamNorms norms{};

    // Calls body(values, gradients, first, count) as OwnPiece::update() does.
    template <class Body>
    void for_blocks(Body body) {
        piece.update(gradient, first, count, body);
    }
};

class Method {
public:
    virtual ~Method() = default;

    virtual const std::vector<SettingKind>& settings() const = 0;
    // Throws INVALID_ARGUMENT where settings do not go together.
    virtual void check(const Settings&) const {}
    // Adds what these settings need.
    virtual void add_arrays(OwnPiece& piece, const Settings& settings) const = 0;
    // Whether it updates the parameter as a matrix, and not element by element.
    virtual bool needs_whole(const Param&, const Settings&) const { return false; }
    // Null, or why it does not step parameters on devices.
    virtual const char* why_not_on_devices() const { return nullptr; }
    // Whether measure() comes before step(), with the norms of whole parameters between them.
    virtual bool measures() const { return false; }
    virtual void measure(Update&) const {}
    virtual void step(Update& update) const = 0;
};

// Throws INVALID_ARGUMENT if there is none of that name.
std::unique_ptr<const Method> make_method(std::string_view name);

}  // namespace libddp
