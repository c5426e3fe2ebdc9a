#include "core/sparse.h"

#include <algorithm>
#include <cstring>

#include "core/group_ref.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {

// One reduction on its way: how many rows each rank has, then the rows, then their union. Ranks send as many rows as the
// longest of them has, because a collective moves the same number everywhere.
struct SparseGradients::Reduction : std::enable_shared_from_this<SparseGradients::Reduction> {
    GroupRef group;
    ddp_dtype dtype = DDP_F32;
    std::size_t row = 0;  // elements of a row
    double scale = 1;
    SparseRows mine;
    std::uint64_t own_bytes = 0;
    std::vector<std::int64_t> counts;
    std::vector<std::int64_t> all_indices;
    std::vector<std::byte> all_values;
    SparseRows result;

    std::size_t row_bytes() const { return row * dtype_size(dtype); }
    std::size_t longest() const { return static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end())); }

    WorkPtr submit(const Collective& collective) { return group.get()->submit(collective, shared_from_this()); }

    WorkPtr start() {
        counts.resize(static_cast<std::size_t>(group.get()->world()));
        const auto own = static_cast<std::size_t>(group.get()->rank());
        counts[own] = static_cast<std::int64_t>(mine.indices.size());
        auto self = shared_from_this();
        return submit({DDP_COLLECTIVE_ALLGATHER, nullptr, counts.data(), 1, DDP_I64})
            ->then([self] { return self->gather(); }, true)
            ->then(
                [self]() -> WorkPtr {
                    self->merge();
                    return nullptr;
                },
                true);
    }

    WorkPtr gather() {
        const std::size_t most = longest();
        if (most == 0) return nullptr;
        const auto world = static_cast<std::size_t>(group.get()->world());
        mine.indices.resize(most);
        mine.values.resize(most * row_bytes());
        all_indices.resize(most * world);
        all_values.resize(most * world * row_bytes());
        auto indices = submit({DDP_COLLECTIVE_ALLGATHER, mine.indices.data(), all_indices.data(), most, DDP_I64});
        if (row == 0) return indices;
        return submit({DDP_COLLECTIVE_ALLGATHER, mine.values.data(), all_values.data(), most * row, dtype});
    }

    // Each row of the union is summed in the order of the ranks, and on a rank in the order it was given.
    void merge() {
        const std::size_t most = longest();
        std::vector<std::pair<std::int64_t, const void*>> rows;
        for (std::size_t r = 0; r < counts.size(); ++r)
            for (std::size_t i = 0; i < static_cast<std::size_t>(counts[r]); ++i)
                rows.emplace_back(all_indices[r * most + i], all_values.data() + (r * most + i) * row_bytes());
        std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        std::vector<const void*> inputs;
        for (std::size_t i = 0; i < rows.size();) {
            inputs.clear();
            const std::int64_t index = rows[i].first;
            for (; i < rows.size() && rows[i].first == index; ++i) inputs.push_back(rows[i].second);
            result.indices.push_back(index);
            result.values.resize(result.values.size() + row_bytes());
            if (row > 0)
                cpu::reduce(result.values.data() + result.values.size() - row_bytes(), inputs.data(), inputs.size(),
                            row, dtype, DDP_SUM, scale);
        }
        all_indices = {};
        all_values = {};
    }
};

void SparseGradients::prepare() {
    for (std::int32_t id = 0; id < table_.size(); ++id)
        if (table_[id].sparse) params_[id];
}

void SparseGradients::require_rows(std::int32_t param, const std::int64_t* indices, std::size_t count) const {
    const Param& p = table_[param];
    const std::int64_t rows = p.shape[0];
    for (std::size_t i = 0; i < count; ++i)
        if (indices[i] < 0 || indices[i] >= rows)
            throw Error({DDP_ERROR_INVALID_ARGUMENT,
                         str("ddp_grad_ready_sparse: '", p.name, "': indices[", i, "] is ", indices[i],
                             "; the parameter has ", rows, " rows"),
                         -1, param});
}

void SparseGradients::add(std::int32_t param, const std::int64_t* indices, const void* values, std::size_t count) {
    const Param& p = table_[param];
    SparseRows& mine = of(param).mine;
    mine.indices.insert(mine.indices.end(), indices, indices + count);
    const auto* bytes = static_cast<const std::byte*>(values);
    const std::size_t size = count * static_cast<std::size_t>(p.row_count()) * dtype_size(p.dtype);
    mine.values.insert(mine.values.end(), bytes, bytes + size);
}

WorkPtr SparseGradients::launch(Group& group, std::int32_t param, double factor, bool mean) {
    const Param& p = table_[param];
    auto reduction = std::make_shared<Reduction>();
    reduction->group = GroupRef(group);
    reduction->dtype = p.dtype;
    reduction->row = static_cast<std::size_t>(p.row_count());
    reduction->scale = mean ? 1.0 / group.world() : 1.0;
    reduction->mine = std::move(of(param).mine);
    of(param).mine = {};
    auto& values = reduction->mine.values;
    reduction->own_bytes = values.size() + reduction->mine.indices.size() * sizeof(std::int64_t);
    if (factor != 1)
        cpu::scale_copy(values.data(), values.data(), values.size() / dtype_size(p.dtype), p.dtype, factor);
    of(param).reduction = reduction;
    return reduction->start();
}

std::uint64_t SparseGradients::collect(std::int32_t param) {
    PerParam& s = of(param);
    s.result = s.reduction ? std::move(s.reduction->result) : SparseRows{};
    const std::uint64_t bytes = s.reduction ? s.reduction->own_bytes : 0;
    s.reduction = nullptr;
    return bytes;
}

}  // namespace libddp
