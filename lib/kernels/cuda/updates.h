// The steps of optimizers, as threads of a kernel do them, with the arithmetic and the rounding of
// kernels/updates.h. Plain C++ can include this file: a test runs it on the CPU.
//
// A block takes 1,024 elements of one piece, and each of its threads a unit of 8, as many as
// ExactSum adds up in f64. A thread brings the unit to its registers, steps it and stores it: one
// pass over values, gradients and state.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/formats.h"
#include "kernels/cuda/tables.h"
#include "kernels/device_kernels.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/updates.h"
#include "util/error.h"

namespace libddp::cuda {

constexpr std::uint32_t kUpdateThreads = 128, kUnit = cpu::ExactSum::kUnit;
constexpr std::uint64_t kUpdateElements = kUpdateThreads * kUnit;  // of a block

struct UpdateRow {
    ddp_update item;
    std::uint64_t first_chunk;  // its first block, among all
};

constexpr int kUpdateRows = 31;  // parameters of a kernel are 4 KiB at most

struct UpdateTable {
    std::uint64_t chunks;  // blocks of all rows
    std::int32_t rows;
    ddp_dtype gradients;
    UpdateRow row[kUpdateRows];
};
static_assert(sizeof(UpdateTable) <= 4096);

// How each method turns an element into the next. T: float or double.

template <class T>
LIBDDP_EVERYWHERE void sgd_element(T& value, T gradient, T& buffer, const cpu::SgdStep& step) {
    T direction = gradient * static_cast<T>(step.scale);
    direction = direction + value * static_cast<T>(step.decay);
    if (step.momentum != 0) {
        const T momentum = static_cast<T>(step.momentum);
        buffer = buffer * momentum + direction;
        direction = step.nesterov ? direction + buffer * momentum : buffer;
    }
    value = value * static_cast<T>(step.keep) - direction * static_cast<T>(step.rate);
}

template <class T>
LIBDDP_EVERYWHERE void take_gradient(T gradient, T& m, T& v, const cpu::AdamStep& step) {
    const T g = gradient * static_cast<T>(step.scale);
    m = m + (g - m) * static_cast<T>(1 - step.beta1);
    v = v * static_cast<T>(step.beta2) + g * g * static_cast<T>(1 - step.beta2);
}

template <class T>
LIBDDP_EVERYWHERE T denominator(T v, const cpu::AdamStep& step) {
    return std::sqrt(v) / static_cast<T>(step.root2) + static_cast<T>(step.eps);
}

template <class T>
LIBDDP_EVERYWHERE void adamw_element(T& value, T gradient, T& m, T& v, const cpu::AdamStep& step) {
    take_gradient(gradient, m, v, step);
    const T kept = value * static_cast<T>(1 - step.rate * step.decay);
    value = kept - m / denominator(v, step) * static_cast<T>(step.rate / step.correction1);
}

template <class T>
LIBDDP_EVERYWHERE T lamb_direction(T value, T m, T v, const cpu::AdamStep& step) {
    return m / static_cast<T>(step.correction1) / denominator(v, step) +
           value * static_cast<T>(step.decay);
}

// A unit of a piece in the registers of a thread. Format: of the values.
template <class Format>
struct Unit {
    using Stored = typename Format::Stored;
    using T = typename Format::Compute;

    Stored stored[kUnit];
    T value[kUnit], gradient[kUnit], first[kUnit], second[kUnit];
};

template <class T>
LIBDDP_EVERYWHERE void load_state(T (&numbers)[kUnit], const void* from, std::uint64_t at,
                                  std::uint32_t n) {
    if (from != nullptr) return load_some(numbers, static_cast<const T*>(from) + at, n);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kUnit; ++i) numbers[i] = 0;
}
template <class T>
LIBDDP_EVERYWHERE void store_state(void* to, std::uint64_t at, const T (&numbers)[kUnit],
                                   std::uint32_t n) {
    if (to != nullptr) store_some(static_cast<T*>(to) + at, numbers, n);
}

template <class Given, class T>
LIBDDP_EVERYWHERE void load_gradients_as(T (&numbers)[kUnit], const void* from, std::uint64_t at,
                                         std::uint32_t n) {
    typename Given::Stored given[kUnit];
    load_some(given, static_cast<const typename Given::Stored*>(from) + at, n);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kUnit; ++i) numbers[i] = static_cast<T>(Given::load(given[i]));
}
template <class T>
LIBDDP_EVERYWHERE void load_gradients(T (&numbers)[kUnit], ddp_dtype dtype, const void* from,
                                      std::uint64_t at, std::uint32_t n) {
    switch (dtype) {
        case DDP_F16:
            return load_gradients_as<F16>(numbers, from, at, n);
        case DDP_BF16:
            return load_gradients_as<BF16>(numbers, from, at, n);
        case DDP_F32:
            return load_gradients_as<F32>(numbers, from, at, n);
        default:
            return load_gradients_as<F64>(numbers, from, at, n);
    }
}

// A value that the program has changed counts, and not what the master has of it.
template <class Format>
LIBDDP_EVERYWHERE void load_unit(Unit<Format>& unit, const UpdateTable& table,
                                 const ddp_update& item, std::uint64_t at, std::uint32_t n) {
    using Stored = typename Format::Stored;
    load_some(unit.stored, static_cast<const Stored*>(item.values) + at, n);
    load_state(unit.value, item.master, at, n);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kUnit; ++i)
        if (item.master == nullptr || Format::store(unit.value[i]) != unit.stored[i])
            unit.value[i] = Format::load(unit.stored[i]);
    if (item.gradients != nullptr)
        load_gradients(unit.gradient, table.gradients, item.gradients, at, n);
    load_state(unit.first, item.first, at, n);
    load_state(unit.second, item.second, at, n);
}

template <class Format>
LIBDDP_EVERYWHERE void store_values(Unit<Format>& unit, const ddp_update& item, std::uint64_t at,
                                    std::uint32_t n) {
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kUnit; ++i) unit.stored[i] = Format::store(unit.value[i]);
    store_some(static_cast<typename Format::Stored*>(item.values) + at, unit.stored, n);
    store_state(item.master, at, unit.value, n);
}

// The methods. kMeasures: they add up squares.

struct Sgd {
    static constexpr bool kMeasures = false;
    template <class Format>
    static LIBDDP_EVERYWHERE void step(Unit<Format>& unit, const ddp_update& item, std::uint64_t at,
                                       std::uint32_t n) {
        const cpu::SgdStep step = cpu::sgd_step_of(item.numbers);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kUnit; ++i)
            sgd_element(unit.value[i], unit.gradient[i], unit.first[i], step);
        store_values(unit, item, at, n);
        store_state(item.first, at, unit.first, n);
    }
};

struct AdamW {
    static constexpr bool kMeasures = false;
    template <class Format>
    static LIBDDP_EVERYWHERE void step(Unit<Format>& unit, const ddp_update& item, std::uint64_t at,
                                       std::uint32_t n) {
        const cpu::AdamStep step = cpu::adam_step_of(item.numbers);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kUnit; ++i)
            adamw_element(unit.value[i], unit.gradient[i], unit.first[i], unit.second[i], step);
        store_values(unit, item, at, n);
        store_state(item.first, at, unit.first, n);
        store_state(item.second, at, unit.second, n);
    }
};

struct LambMeasure {
    static constexpr bool kMeasures = true;
    // Leaves the directions in place of the gradients.
    template <class Format>
    static LIBDDP_EVERYWHERE void step(Unit<Format>& unit, const ddp_update& item, std::uint64_t at,
                                       std::uint32_t n) {
        const cpu::AdamStep step = cpu::adam_step_of(item.numbers);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kUnit; ++i) {
            take_gradient(unit.gradient[i], unit.first[i], unit.second[i], step);
            unit.gradient[i] =
                i < n ? lamb_direction(unit.value[i], unit.first[i], unit.second[i], step) : 0;
        }
        store_values(unit, item, at, n);  // a master may have followed its value
        store_state(item.first, at, unit.first, n);
        store_state(item.second, at, unit.second, n);
    }
};

struct Lamb {
    static constexpr bool kMeasures = false;
    template <class Format>
    static LIBDDP_EVERYWHERE void step(Unit<Format>& unit, const ddp_update& item, std::uint64_t at,
                                       std::uint32_t n) {
        using T = typename Unit<Format>::T;
        const cpu::AdamStep step = cpu::adam_step_of(item.numbers);
        cpu::SgdStep along;
        along.rate = step.rate;
        T none = 0;
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kUnit; ++i)
            sgd_element(unit.value[i],
                        lamb_direction(unit.value[i], unit.first[i], unit.second[i], step), none,
                        along);
        store_values(unit, item, at, n);
    }
};

// Numbers behind the end are 0.
template <class T>
LIBDDP_EVERYWHERE double sum_of_squares(const T (&numbers)[kUnit]) {
    double squares[kUnit];
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kUnit; ++i)
        squares[i] = static_cast<double>(numbers[i]) * static_cast<double>(numbers[i]);
    return ((squares[0] + squares[1]) + (squares[2] + squares[3])) +
           ((squares[4] + squares[5]) + (squares[6] + squares[7]));
}

// The digits of ExactSum, twice: of values, and of directions.
struct UpdateShared {
    std::uint64_t digits[2 * cpu::ExactSum::kDigits];
};

// As ExactSum::add(). Whole numbers have no order, so threads may add at the same time.
template <class Threads>
LIBDDP_COOPERATIVE void add_exactly(const Threads& threads, std::uint64_t* digits, double number) {
    const cpu::ExactSum::Addend addend = cpu::ExactSum::addend_of(bits_as<std::uint64_t>(number));
    for (std::uint32_t i = 0; i < 3; ++i)
        if (addend.digits[i] != 0) threads.add(digits + addend.first + i, addend.digits[i]);
}

template <class Method, class Format, class Threads>
LIBDDP_COOPERATIVE void update_block(const Threads& threads, UpdateShared& shared,
                                     const UpdateTable& table, std::uint64_t block) {
    constexpr std::uint32_t kDigits = 2 * cpu::ExactSum::kDigits;
    const UpdateRow& row = table.row[find_row(table, block, 0, table.rows - 1)];
    const ddp_update& item = row.item;
    const std::uint64_t first = (block - row.first_chunk) * kUpdateElements;
    if constexpr (Method::kMeasures) {
        for (std::uint32_t i = threads.index(); i < kDigits; i += threads.size())
            shared.digits[i] = 0;
        threads.sync();
    }
    for (std::uint32_t i = threads.index(); i < kUpdateThreads; i += threads.size()) {
        const std::uint64_t at = first + std::uint64_t{i} * kUnit;
        if (at >= item.count) break;
        const auto n =
            item.count - at < kUnit ? static_cast<std::uint32_t>(item.count - at) : kUnit;
        Unit<Format> unit;
        load_unit(unit, table, item, at, n);
        Method::step(unit, item, at, n);
        if constexpr (Method::kMeasures) {
            add_exactly(threads, shared.digits, sum_of_squares(unit.value));
            add_exactly(threads, shared.digits + kDigits / 2, sum_of_squares(unit.gradient));
        }
    }
    if constexpr (Method::kMeasures) {
        threads.sync();
        for (std::uint32_t i = threads.index(); i < kDigits; i += threads.size())
            if (shared.digits[i] != 0) threads.add(item.digits + i, shared.digits[i]);
        threads.sync();  // before the next block, if these threads play that, too
    }
}

// From lists of pieces to the parameters of kernels. Plain C++.

// Calls use(table) for tables that hold all items.
template <class Use>
void each_update_table(const ddp_update* items, std::size_t count, ddp_dtype gradients, Use use) {
    for (std::size_t begin = 0; begin < count; begin += kUpdateRows) {
        UpdateTable table{};
        table.gradients = gradients;
        for (std::size_t i = begin; i < count && table.rows < kUpdateRows; ++i) {
            table.row[table.rows++] = {items[i], table.chunks};
            table.chunks += (items[i].count + kUpdateElements - 1) / kUpdateElements;
        }
        if (table.chunks > 0) use(table);
    }
}

// Calls use(Method(), Format()). Throws UNSUPPORTED.
template <class Use>
void with_update(ddp_update_op op, ddp_dtype values, ddp_dtype gradients, Use use) {
    for (const ddp_dtype dtype : {values, gradients})
        if (!is_real(dtype))
            fail(DDP_ERROR_UNSUPPORTED, "no optimizer steps numbers of ", dtype_name(dtype));
    with_floating(values, [&](auto format) {
        switch (op) {
            case DDP_UPDATE_SGD:
                return use(Sgd(), format);
            case DDP_UPDATE_ADAMW:
                return use(AdamW(), format);
            case DDP_UPDATE_LAMB_MEASURE:
                return use(LambMeasure(), format);
            default:
                return use(Lamb(), format);
        }
    });
}

}  // namespace libddp::cuda
