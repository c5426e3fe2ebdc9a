// Pieces for the steps of optimizers (device_kernels.h), in memory of any place: put(bytes) brings
// bytes there and says where.
#pragma once

#include <cmath>
#include <cstring>
#include <list>
#include <vector>

#include "kernels/exact_sum.h"
#include "kernels/updates.h"
#include "support/update_on_cpu.h"
#include "unit/cuda/low_rank_operands.h"

namespace libddp::testing_cuda {

struct UpdateCase {
    const char* name;
    ddp_update_op op;
    cpu::SgdStep sgd{};
    cpu::AdamStep adam{};
};

inline const std::vector<UpdateCase> kUpdates = {
    {"sgd", DDP_UPDATE_SGD, {0.1, 0, 0.3, 1, 0.7}},
    {"momentum", DDP_UPDATE_SGD, {0.1, 0.9, 0.3, 0.97, 0.7}},
    {"nesterov", DDP_UPDATE_SGD, {0.1, 0.9, 0.3, 0.97, 0.7, true}},
    {"adamw", DDP_UPDATE_ADAMW, {}, {0.9, 0.99, 1e-8, 0.7, 0.5, 0.25, 0.1, 0.2}},
    {"measure", DDP_UPDATE_LAMB_MEASURE, {}, {0.9, 0.99, 1e-6, 0.7, 0.5, 0.25, 0.1, 0.2}},
    {"lamb", DDP_UPDATE_LAMB, {}, {0.9, 0.99, 1e-6, 0.7, 0.5, 0.25, 0.1, 0.2}}};

// Pieces of one block and of several, and more than one launch takes.
inline std::vector<std::size_t> update_counts() {
    std::vector<std::size_t> counts = {1, 7, 8, 9, 1023, 1024, 1025, 2100};
    for (std::size_t i = 0; i < 26; ++i) counts.push_back(i * 7 + 1);
    return counts;
}

// Some of the masters are near their values, and others are not.
inline Bytes masters_of(const Bytes& values, ddp_dtype dtype) {
    std::vector<double> masters = numbers_of(values, dtype);
    for (std::size_t i = 0; i < masters.size(); ++i)
        masters[i] = i % 3 == 0 ? 0.37 : masters[i] * (1 + 1e-5 * static_cast<double>(i % 5));
    Bytes bytes(masters.size() * sizeof(float));
    cpu::convert(bytes.data(), DDP_F32, masters.data(), DDP_F64, masters.size());
    return bytes;
}

// For each piece: values, gradients, state, second state, digits, and perhaps the master.
constexpr std::size_t kDigitsPlace = 4;
template <class Put>
std::vector<ddp_update> update_items(const UpdateCase& test, const std::vector<std::size_t>& counts,
                                     ddp_dtype values, ddp_dtype gradients, Put put) {
    const ddp_dtype state = compute_dtype(values);
    std::vector<ddp_update> items;
    double seed = 0.1;
    for (const std::size_t count : counts) {
        ddp_update item{};
        item.count = count;
        const Bytes start = waves(count, values, seed += 0.1);
        Bytes squares = waves(count, state, seed += 0.1);
        for (std::size_t i = 0; i < count; ++i)
            squares[(i + 1) * dtype_size(state) - 1] &= std::byte{0x7f};  // not negative
        item.values = put(start);
        item.gradients = put(waves(count, gradients, seed += 0.1));
        item.first = put(waves(count, state, seed += 0.1));
        item.second = put(squares);
        item.digits = static_cast<std::uint64_t*>(put(Bytes(2 * sizeof(cpu::ExactSum::Digits))));
        if (state != values) item.master = put(masters_of(start, values));
        test.op == DDP_UPDATE_SGD ? numbers_of(test.sgd, item.numbers)
                                  : numbers_of(test.adam, item.numbers);
        items.push_back(item);
    }
    return items;
}

// Digits have many forms, of which this is one.
inline std::list<Bytes> with_carried_digits(std::list<Bytes> memory, ddp_dtype values) {
    const std::size_t each = compute_dtype(values) == values ? 5 : 6;
    std::size_t i = 0;
    for (Bytes& bytes : memory) {
        if (i++ % each != kDigitsPlace) continue;
        for (std::size_t half = 0; half < 2; ++half) {
            cpu::ExactSum::Digits digits;
            std::byte* const at = bytes.data() + half * sizeof digits;
            std::memcpy(digits.data(), at, sizeof digits);
            cpu::ExactSum sum;
            sum.set_digits(digits);
            std::memcpy(at, sum.digits().data(), sizeof digits);
        }
    }
    return memory;
}

}  // namespace libddp::testing_cuda
