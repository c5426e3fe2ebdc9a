// first_nonfinite and scale_copy_checked, against the same with plain code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "unit/device/reference.h"

namespace libddp {
namespace finite_test {

using namespace reference;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Numbers of one type, as bytes. A complex element is two of them.
class Numbers {
public:
    Numbers(ddp_dtype dtype, std::size_t elements)
        : dtype_(dtype), each_(is_complex(dtype) ? 2 : 1), bytes_(elements * dtype_size(dtype)) {
        std::mt19937 random(7);
        for (std::size_t i = 0; i < elements * each_; ++i)
            set(i, (static_cast<double>(random()) / std::mt19937::max() - 0.5) *
                       (i % 3 == 0 ? 1e-6 : 1e4));
    }
    void set(std::size_t number, double value) {
        const auto f = static_cast<float>(value);
        const std::uint16_t half = dtype_ == DDP_F16 ? f16_bits(f) : bf16_bits(f);
        const bool wide = dtype_ == DDP_F64 || dtype_ == DDP_C128;
        const std::size_t size = dtype_size(dtype_) / each_;
        const void* from = size == 2 ? static_cast<const void*>(&half)
                           : wide    ? static_cast<const void*>(&value)
                                     : &f;
        std::memcpy(bytes_.data() + number * size, from, size);
    }
    std::size_t each() const { return each_; }
    std::vector<std::byte>& bytes() { return bytes_; }

private:
    ddp_dtype dtype_;
    std::size_t each_;
    std::vector<std::byte> bytes_;
};

constexpr ddp_dtype kTypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64, DDP_C128};

TEST(Finite, FindsEachBadNumberWhereverItStands) {
    for (const ddp_dtype dtype : kTypes)
        for (const std::size_t count : {1, 2, 3, 7, 16, 63, 64, 65, 500, 20'000}) {
            Numbers numbers(dtype, count);
            const void* data = numbers.bytes().data();
            EXPECT_EQ(cpu::first_nonfinite(data, count, dtype), count) << dtype_name(dtype);
            for (const double bad : {kNan, -kNan, kInfinity, -kInfinity})
                for (const std::size_t at : {std::size_t{0}, count / 3, count / 2, count - 1})
                    for (std::size_t part = 0; part < numbers.each(); ++part) {
                        Numbers with = numbers;
                        with.set(at * with.each() + part, bad);
                        with.set((count - 1) * with.each(), bad);
                        EXPECT_EQ(cpu::first_nonfinite(with.bytes().data(), count, dtype), at)
                            << dtype_name(dtype) << " " << count << " " << bad;
                    }
        }
}

TEST(Finite, TheLargestAndTheSmallestNumbersAreFine) {
    const float singles[] = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(),
                             std::numeric_limits<float>::denorm_min(), -0.0f};
    EXPECT_EQ(cpu::first_nonfinite(singles, 4, DDP_F32), 4u);
    const double doubles[] = {std::numeric_limits<double>::max(),
                              -std::numeric_limits<double>::denorm_min(),
                              std::nextafter(0, 1) + 4e-320, -0.0};
    EXPECT_EQ(cpu::first_nonfinite(doubles, 4, DDP_F64), 4u);
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16}) {
        const std::uint32_t exponent = dtype == DDP_F16 ? 0x7c00 : 0x7f80;
        std::size_t finite = 0;
        for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
            const auto one = static_cast<std::uint16_t>(bits);
            const std::size_t found = cpu::first_nonfinite(&one, 1, dtype);
            EXPECT_EQ(found == 1, (bits & exponent) != exponent);
            finite += found;
        }
        EXPECT_GT(finite, 60'000u);
    }
}

TEST(Finite, IntegersAreAlwaysFine) {
    const std::vector<std::byte> ones(800, std::byte{0xff});
    for (const ddp_dtype dtype : {DDP_I32, DDP_I64, DDP_U8})
        EXPECT_EQ(cpu::first_nonfinite(ones.data(), 100, dtype), 100u);
}

TEST(Finite, ACheckedCopyIsTheCopy) {
    for (const ddp_dtype dtype : kTypes)
        for (const std::size_t count : {0, 1, 33, 20'000})
            for (const double scale : {1.0, 0.5, 1.0 / 3}) {
                Numbers from(dtype, count);
                std::vector<std::byte> plain(from.bytes().size()), checked(plain.size());
                cpu::scale_copy(plain.data(), from.bytes().data(), count, dtype, scale);
                EXPECT_EQ(cpu::scale_copy_checked(checked.data(), from.bytes().data(), count, dtype,
                                                  scale),
                          count);
                EXPECT_EQ(plain, checked) << dtype_name(dtype);
                std::vector<std::byte> here = from.bytes();
                EXPECT_EQ(cpu::scale_copy_checked(here.data(), here.data(), count, dtype, scale),
                          count);
                EXPECT_EQ(plain, here) << dtype_name(dtype);
            }
}

TEST(Finite, ACheckedCopySeesWhatItWrites) {
    for (const ddp_dtype dtype : kTypes) {
        Numbers from(dtype, 9'000);
        from.set(8'765 * from.each(), kNan);
        std::vector<std::byte> to(from.bytes().size());
        for (const double scale : {1.0, 0.25})
            EXPECT_EQ(cpu::scale_copy_checked(to.data(), from.bytes().data(), 9'000, dtype, scale),
                      8'765u);
    }
    std::vector<std::uint16_t> halves(100, f16_bits(1));
    halves[60] = f16_bits(60'000);  // finite, but not twice of it
    EXPECT_EQ(cpu::scale_copy_checked(halves.data(), halves.data(), 100, DDP_F16, 2), 60u);
}

}  // namespace finite_test
}  // namespace libddp
