// From lists of matrices to the parameters of kernels. Plain C++.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/tables.h"
#include "kernels/cuda/thin.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cuda {

// Calls use(table) for tables that hold all items in rows; `table` is empty. add(table, row, item): fills in a row.
template <class AnyTable, class Item, class Add, class Use>
void each_filled(AnyTable table, const Item* items, std::size_t count, Add add, Use use) {
    constexpr std::size_t kMost = sizeof table.row / sizeof *table.row;
    for (std::size_t begin = 0; begin < count; begin += kMost) {
        const std::size_t rows = count - begin < kMost ? count - begin : kMost;
        AnyTable filled = table;
        filled.rows = static_cast<std::int32_t>(rows);
        for (std::size_t i = 0; i < rows; ++i) add(filled, filled.row[i], items[begin + i]);
        use(filled);
    }
}

// Product: Project, ProjectBack, AddParts or Restore. Calls use(table).
template <class Product, class Use>
void each_low_rank_table(const ddp_low_rank* items, std::size_t count, Use use) {
    const auto add = [](LowRankTable& table, LowRankRow& row, const ddp_low_rank& item) {
        row = {item, table.blocks};
        table.blocks += Product::blocks_of(item);
    };
    each_filled(LowRankTable{}, items, count, add, [&](const LowRankTable& table) {
        if (table.blocks > 0) use(table);
    });
}

template <class Use>
void each_thin_table(const ddp_thin* items, std::size_t count, const ddp_thin_rules& rules, Use use) {
    ThinTable table{};
    table.rules = rules;
    each_filled(
        table, items, count, [](ThinTable&, ddp_thin& row, const ddp_thin& item) { row = item; }, use);
}

template <class Use>
void each_doubt_table(const ddp_doubt* items, std::size_t count, const std::uint32_t* only_if, Use use) {
    DoubtTable table{};
    table.only_if = only_if;
    each_filled(
        table, items, count, [](DoubtTable&, ddp_doubt& row, const ddp_doubt& item) { row = item; }, use);
}

// Calls use(Format()). Throws UNSUPPORTED.
template <class Use>
void with_real_format(ddp_dtype dtype, Use use) {
    if (!is_real(dtype)) fail(DDP_ERROR_UNSUPPORTED, "low-rank products of ", dtype_name(dtype), " are not supported");
    with_floating(dtype, use);
}

// Calls use(tile) with a compile-time number of columns that a thread works on at a time.
template <class Product, class Use>
void with_tile(const LowRankTable& table, Use use) {
    std::size_t rank = 0;
    for (std::int32_t i = 0; i < table.rows; ++i) rank = table.row[i].m.rank > rank ? table.row[i].m.rank : rank;
    if (!Product::kTiled || rank <= 1) return use(std::integral_constant<int, 1>());
    if constexpr (Product::kTiled) {
        if (rank <= 2) return use(std::integral_constant<int, 2>());
        use(std::integral_constant<int, 4>());
    }
}

// Calls use(Product(), Format(), tile, table) for each launch that a list needs.
template <class Use>
void each_low_rank_launch(ddp_low_rank_op op, const ddp_low_rank* items, std::size_t count, ddp_dtype dtype, Use use) {
    const auto launch = [&](auto product) {
        each_low_rank_table<decltype(product)>(items, count, [&](const LowRankTable& table) {
            with_tile<decltype(product)>(table, [&](auto tile) {
                with_real_format(dtype, [&](auto format) { use(product, format, tile, table); });
            });
        });
    };
    if (op == DDP_LOW_RANK_PROJECT) {
        launch(Project());
    } else if (op == DDP_LOW_RANK_PROJECT_BACK) {
        launch(ProjectBack());
        launch(AddParts());
    } else {
        launch(Restore());
    }
}

}  // namespace libddp::cuda
