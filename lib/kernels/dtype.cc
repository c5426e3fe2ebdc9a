#include "kernels/dtype.h"

#include <iterator>

namespace libddp {
namespace {

struct Facts {
    std::size_t size;
    const char* name;
    bool floating;
    bool complex;
};

constexpr Facts kUnknown{0, "unknown", false, false};
constexpr Facts kFacts[] = {
    kUnknown,
    {2, "f16", true, false},
    {2, "bf16", true, false},
    {4, "f32", true, false},
    {8, "f64", true, false},
    {4, "i32", false, false},
    {8, "i64", false, false},
    {1, "u8", false, false},
    {8, "c64", true, true},
    {16, "c128", true, true},
};

const Facts& facts(ddp_dtype dtype) {
    return dtype >= 0 && dtype < static_cast<int>(std::size(kFacts)) ? kFacts[dtype] : kUnknown;
}

}  // namespace

std::size_t dtype_size(ddp_dtype dtype) {
    return facts(dtype).size;
}
std::size_t dtype_alignment(ddp_dtype dtype) {
    return is_complex(dtype) ? dtype_size(dtype) / 2 : dtype_size(dtype);
}
const char* dtype_name(ddp_dtype dtype) {
    return facts(dtype).name;
}
bool is_floating(ddp_dtype dtype) {
    return facts(dtype).floating;
}
bool is_real(ddp_dtype dtype) {
    return is_floating(dtype) && !is_complex(dtype);
}
bool is_complex(ddp_dtype dtype) {
    return facts(dtype).complex;
}

}  // namespace libddp
