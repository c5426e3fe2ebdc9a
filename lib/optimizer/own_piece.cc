#include "optimizer/own_piece.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/arithmetic.h"
#include "util/error.h"

namespace libddp {

OwnPiece::OwnPiece(const Param& param, const ShardPiece& range, StreamPtr stream)
    : param_(&param),
      range_(range),
      stream_(std::move(stream)),
      dtype_(compute_dtype(param.dtype)) {
    if (param.dtype != dtype_) add_array(kMaster);
}

// On the CPU the system gives zeros that cost nothing until somebody writes there: a parameter that is
// never updated has no state.
void OwnPiece::add_array(const char* name) {
    if (std::any_of(arrays_.begin(), arrays_.end(),
                    [name](const Array& a) { return std::strcmp(a.name, name) == 0; }))
        return;
    const std::size_t bytes = count() * dtype_size(dtype_);
    if (stream_) {
        arrays_.push_back({name, stream_->allocate(bytes)});
        return;
    }
    void* const numbers = std::calloc(count(), dtype_size(dtype_));
    if (!numbers)
        throw CallError(
            {DDP_ERROR_OUT_OF_MEMORY,
             str("no memory for ", bytes, " bytes of ", name, " of '", param_->name, "'"), -1,
             range_.param});
    arrays_.push_back({name, std::shared_ptr<void>(numbers, &std::free)});
}

void* OwnPiece::array(std::string_view name, std::size_t first) const {
    const auto found = std::find_if(arrays_.begin(), arrays_.end(),
                                    [name](const Array& a) { return a.name == name; });
    if (found == arrays_.end()) return nullptr;
    return static_cast<std::byte*>(found->numbers.get()) + first * dtype_size(dtype_);
}

std::byte* OwnPiece::value(std::size_t first) const {
    return static_cast<std::byte*>(param_->data) +
           (static_cast<std::size_t>(range_.first) + first) * dtype_size(param_->dtype);
}

void OwnPiece::read(Block& block, const void* gradient, std::size_t first, std::size_t n) const {
    if (gradient) {
        const ddp_dtype given = param_->gradient.dtype;
        block.gradients = gradient;
        if (given != dtype_) {
            cpu::convert(block.converted, dtype_, block.gradients, given, n);
            block.gradients = block.converted;
        }
    }
    block.values = value(first);
    if (param_->dtype == dtype_) return;
    // A value that the program has changed counts, and not what the master has of it: a loaded
    // checkpoint, an average of models, or the first value of all.
    block.values = array(kMaster, first);
    auto* const masters = static_cast<float*>(block.values);
    std::uint16_t rounded[kBlock], now[kBlock];
    cpu::convert(rounded, param_->dtype, masters, dtype_, n);
    std::memcpy(now, value(first), n * sizeof *now);
    if (std::memcmp(rounded, now, n * sizeof *now) == 0) return;
    float exact[kBlock];
    cpu::convert(exact, dtype_, now, param_->dtype, n);
    for (std::size_t i = 0; i < n; ++i)
        if (rounded[i] != now[i]) masters[i] = exact[i];
}

void OwnPiece::write(const Block& block, std::size_t first, std::size_t n) const {
    if (param_->dtype != dtype_) cpu::convert(value(first), param_->dtype, block.values, dtype_, n);
}

}  // namespace libddp
