#include "core/rows_and_factors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "device/scratch.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
// The group of an operation that waits in that group's own queue. It does not keep the group alive:
// a group that its user has freed would live as long as the queue, and be destroyed by whichever
// thread empties that, the group's own.
class GroupRef {
public:
    GroupRef() = default;
    explicit GroupRef(Group& group) : group_(group.weak_from_this()) {}

    // Throws ABORTED once the group was freed.
    std::shared_ptr<Group> get() const {
        if (auto group = group_.lock()) return group;
        fail(DDP_ERROR_ABORTED, "the group was freed");
    }

private:
    std::weak_ptr<Group> group_;
};

namespace {

void clear_memory(std::byte* memory, std::size_t bytes) {
    if (bytes > 0) std::memset(memory, 0, bytes);
}

void make_room(std::vector<std::byte>& target, std::size_t bytes) {
    const std::size_t needed = target.size() + bytes;
    if (needed > target.capacity()) target.reserve(std::max(needed, 2 * target.capacity()));
}

void append(std::vector<std::byte>& target, const void* source, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(source);
    target.insert(target.end(), begin, begin + bytes);
}

// A rank says this instead of its number of rows when it has more to give than factors.
constexpr std::int64_t kWhole = -1;

// Rank `rank` says something that no rank of this libddp says.
template <class... Parts>
[[noreturn]] void damaged(std::size_t rank, const Parts&... parts) {
    throw Error(ErrorInfo{DDP_ERROR_IO,
                          str("rank ", rank, " sent ", parts..., "; its memory is damaged"),
                          static_cast<std::int32_t>(rank)});
}

// least: of what a rank may say. row_bytes: of what it sends for one row. The rows of all ranks
// must have an address.
void check_counts(const std::vector<std::int64_t>& counts, std::int64_t least,
                  std::size_t row_bytes) {
    const std::size_t most = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) /
                             (row_bytes + 1) / counts.size();
    for (std::size_t r = 0; r < counts.size(); ++r)
        if (counts[r] < least || (counts[r] > 0 && static_cast<std::size_t>(counts[r]) > most))
            damaged(r, counts[r], " as its number of rows");
}

}  // namespace

// One reduction on its way: how many rows each rank has, then the rows, then their union. Ranks
// send as many rows as the longest of them has, because a collective moves the same number
// everywhere.
struct SparseGradients::Reduction : std::enable_shared_from_this<SparseGradients::Reduction> {
    GroupRef group;
    ddp_dtype dtype = DDP_F32;
    std::int64_t rows = 0;  // of the parameter
    std::size_t row = 0;    // elements of a row
    double scale = 1;
    SparseRows mine;
    std::uint64_t own_bytes = 0;
    std::vector<std::int64_t> counts;
    std::vector<std::int64_t> all_indices;
    std::vector<std::byte> all_values;
    SparseRows result;

    std::size_t row_bytes() const { return row * dtype_size(dtype); }
    std::size_t longest() const {
        return static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
    }

    WorkPtr submit(const Collective& collective, const OpTag& tag) {
        return group.get()->submit(collective, tag.keeping(shared_from_this()));
    }

    WorkPtr start(const OpTag& tag) {
        counts.resize(static_cast<std::size_t>(group.get()->world()));
        const auto own = static_cast<std::size_t>(group.get()->rank());
        counts[own] = static_cast<std::int64_t>(mine.indices.size());
        auto self = shared_from_this();
        return submit({DDP_COLLECTIVE_ALLGATHER, nullptr, counts.data(), 1, DDP_I64}, tag)
            ->then([self](const OpTag& inherited) { return self->gather(inherited); }, true, tag)
            ->then(
                [self](const OpTag&) -> WorkPtr {
                    self->merge();
                    return nullptr;
                },
                true, tag);
    }

    WorkPtr gather(const OpTag& tag) {
        check_counts(counts, 0, row_bytes() + sizeof(std::int64_t));
        const std::size_t most = longest();
        if (most == 0) return nullptr;
        const auto world = static_cast<std::size_t>(group.get()->world());
        mine.indices.resize(most);
        mine.values.resize(most * row_bytes());
        all_indices.resize(most * world);
        all_values.resize(most * world * row_bytes());
        auto indices = submit(
            {DDP_COLLECTIVE_ALLGATHER, mine.indices.data(), all_indices.data(), most, DDP_I64},
            tag);
        if (row == 0) return indices;
        return submit(
            {DDP_COLLECTIVE_ALLGATHER, mine.values.data(), all_values.data(), most * row, dtype},
            tag);
    }

    // Each row of the union is summed in the order of the ranks, and on a rank in the order it was
    // given.
    void merge() {
        const std::size_t most = longest();
        std::vector<std::pair<std::int64_t, const void*>> all;
        for (std::size_t r = 0; r < counts.size(); ++r)
            for (std::size_t i = 0; i < static_cast<std::size_t>(counts[r]); ++i) {
                const std::int64_t index = all_indices[r * most + i];
                if (index < 0 || index >= rows)
                    damaged(r, "the row ", index, " of a parameter with ", rows, " rows");
                all.emplace_back(index, all_values.data() + (r * most + i) * row_bytes());
            }
        std::stable_sort(all.begin(), all.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        std::vector<const void*> inputs;
        for (std::size_t i = 0; i < all.size();) {
            inputs.clear();
            const std::int64_t index = all[i].first;
            for (; i < all.size() && all[i].first == index; ++i) inputs.push_back(all[i].second);
            result.indices.push_back(index);
            result.values.resize(result.values.size() + row_bytes());
            if (row > 0)
                cpu::reduce(result.values.data() + result.values.size() - row_bytes(),
                            inputs.data(), inputs.size(), row, dtype, DDP_SUM, scale);
        }
        all_indices = {};
        all_values = {};
    }
};

void SparseGradients::prepare() {
    for (std::int32_t id = 0; id < table_.size(); ++id)
        if (table_[id].sparse) params_[id];
}

void SparseGradients::require_rows(std::int32_t param, const std::int64_t* indices,
                                   std::size_t count) const {
    const Param& p = table_[param];
    const std::int64_t rows = p.shape[0];
    for (std::size_t i = 0; i < count; ++i)
        if (indices[i] < 0 || indices[i] >= rows)
            throw CallError({DDP_ERROR_INVALID_ARGUMENT,
                             str("'", p.name, "': indices[", i, "] is ", indices[i],
                                 "; the parameter has ", rows, " rows"),
                             -1, param});
}

void SparseGradients::add(std::int32_t param, const std::int64_t* indices, const void* values,
                          std::size_t count) {
    const Param& p = table_[param];
    SparseRows& mine = of(param).mine;
    mine.indices.insert(mine.indices.end(), indices, indices + count);
    const auto* bytes = static_cast<const std::byte*>(values);
    const std::size_t size =
        count * static_cast<std::size_t>(p.row_count()) * dtype_size(p.gradient.dtype);
    mine.values.insert(mine.values.end(), bytes, bytes + size);
}

WorkPtr SparseGradients::launch(Group& group, std::int32_t param, double factor, bool mean,
                                const OpTag& tag) {
    const Param& p = table_[param];
    auto reduction = std::make_shared<Reduction>();
    reduction->group = GroupRef(group);
    reduction->dtype = p.gradient.dtype;
    reduction->rows = p.shape[0];
    reduction->row = static_cast<std::size_t>(p.row_count());
    reduction->scale = mean ? 1.0 / group.world() : 1.0;
    reduction->mine = std::move(of(param).mine);
    of(param).mine = {};
    auto& values = reduction->mine.values;
    reduction->own_bytes = values.size() + reduction->mine.indices.size() * sizeof(std::int64_t);
    if (factor == 0)
        clear_memory(values.data(), values.size());  // not 0 * infinity
    else if (factor != 1)
        cpu::scale_copy(values.data(), values.data(), values.size() / dtype_size(p.gradient.dtype),
                        p.gradient.dtype, factor);
    of(param).reduction = reduction;
    return reduction->start(tag);
}

void SparseGradients::scale_result(std::int32_t param, double factor) {
    std::vector<std::byte>& values = of(param).result.values;
    const ddp_dtype dtype = table_[param].gradient.dtype;
    cpu::scale_copy(values.data(), values.data(), values.size() / dtype_size(dtype), dtype, factor);
}

const SparseRows& SparseGradients::reduced(std::int32_t param) {
    static const SparseRows none;
    const auto& reduction = of(param).reduction;
    return reduction ? reduction->result : none;
}

std::uint64_t SparseGradients::collect(std::int32_t param) {
    PerParam& s = of(param);
    s.result = s.reduction ? std::move(s.reduction->result) : SparseRows{};
    const std::uint64_t bytes = s.reduction ? s.reduction->own_bytes : 0;
    s.reduction = nullptr;
    return bytes;
}

// A gradient of n rows and m columns.
struct FactorGradients::Matrix {
    explicit Matrix(const Param& p)
        : dtype(p.gradient.dtype),
          item(dtype_size(p.gradient.dtype)),
          n(static_cast<std::size_t>(p.shape[0])),
          m(static_cast<std::size_t>(p.row_count())) {}

    std::size_t bytes() const { return n * m * item; }
    // Bytes of one row of both factors.
    std::size_t row_bytes() const { return (n + m) * item; }
    // Whether `rows` rows of factors are less than the gradient.
    bool larger_than(std::size_t rows) const { return n * m > 0 && rows <= (n * m - 1) / (n + m); }
    // out = scale * (sum of `rows` outer products, with `add` to what was there).
    void multiply(std::byte* out, const std::vector<std::byte>& left,
                  const std::vector<std::byte>& right, std::size_t rows, bool add,
                  double scale) const {
        if (n * m > 0)
            cpu::outer_products(out, left.data(), right.data(), rows, n, m, dtype, add, scale);
    }

    ddp_dtype dtype;
    std::size_t item, n, m;
};

// One reduction on its way. First every rank learns what the others have. Then either the factors
// of all ranks, with rows of zeros up to the longest, go to everyone, and each rank adds up the
// products itself; or each rank does that for its own factors only, and the gradients are reduced
// as dense ones are.
struct FactorGradients::Reduction : std::enable_shared_from_this<FactorGradients::Reduction> {
    explicit Reduction(const Param& p) : matrix(p) {}

    const Matrix matrix;
    GroupRef group;
    std::shared_ptr<const void> bucket;  // keeps `place`
    std::byte* place = nullptr;
    bool mean = true;
    Given mine;
    std::vector<std::int64_t> counts;
    ScratchMemory all;
    std::uint64_t own_bytes = 0;

    std::size_t own() const { return static_cast<std::size_t>(group.get()->rank()); }
    std::size_t longest() const {
        return static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
    }
    std::byte* part(std::size_t rank) const {
        return all.get() + rank * longest() * matrix.row_bytes();
    }

    WorkPtr start(const OpTag& tag) {
        counts.assign(static_cast<std::size_t>(group.get()->world()), 0);
        counts[own()] =
            mine.whole || !mine.sum.empty() ? kWhole : static_cast<std::int64_t>(mine.rows);
        auto self = shared_from_this();
        return group.get()
            ->submit({DDP_COLLECTIVE_ALLGATHER, nullptr, counts.data(), 1, DDP_I64},
                     tag.keeping(self))
            ->then([self](const OpTag& inherited) { return self->reduce(inherited); }, true, tag);
    }

    // The same choice on every rank.
    WorkPtr reduce(const OpTag& tag) {
        check_counts(counts, kWhole, matrix.row_bytes());
        const bool factors = *std::min_element(counts.begin(), counts.end()) != kWhole;
        return factors && matrix.larger_than(longest()) ? gather(tag) : materialize(tag);
    }

    WorkPtr gather(const OpTag& tag) {
        const std::size_t most = longest();
        if (most == 0) {
            clear_memory(place, matrix.bytes());
            return nullptr;
        }
        own_bytes = most * matrix.row_bytes();
        all.require(counts.size() * own_bytes);
        std::byte* const left = part(own());
        std::byte* const right = left + most * matrix.n * matrix.item;
        clear_memory(left, own_bytes);
        std::copy(mine.left.begin(), mine.left.end(), left);
        std::copy(mine.right.begin(), mine.right.end(), right);
        auto self = shared_from_this();
        return group.get()
            ->submit({DDP_COLLECTIVE_ALLGATHER, nullptr, all.get(), own_bytes / matrix.item,
                      matrix.dtype},
                     tag.keeping(self))
            ->then(
                [self](const OpTag&) -> WorkPtr {
                    self->add_up();
                    return nullptr;
                },
                true, tag);
    }

    // In the order of the ranks, and on a rank in the order of its rows: the same bits everywhere.
    void add_up() {
        mine.clear();
        for (std::size_t r = 0; r < counts.size(); ++r) {
            const auto rows = static_cast<std::size_t>(counts[r]);
            append(mine.left, part(r), rows * matrix.n * matrix.item);
            append(mine.right, part(r) + longest() * matrix.n * matrix.item,
                   rows * matrix.m * matrix.item);
            mine.rows += rows;
        }
        matrix.multiply(place, mine.left, mine.right, mine.rows, false,
                        mean ? 1.0 / group.get()->world() : 1.0);
    }

    WorkPtr materialize(const OpTag& tag) {
        const std::size_t count = matrix.n * matrix.m;
        own_bytes = matrix.bytes();
        bool add = mine.whole;
        if (!mine.sum.empty()) {
            const void* parts[] = {mine.sum.data(), place};
            cpu::reduce(place, parts, add ? 2 : 1, count, matrix.dtype, DDP_SUM, 1);
            add = true;
        }
        if (!add || mine.rows > 0) matrix.multiply(place, mine.left, mine.right, mine.rows, add, 1);
        return group.get()->submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, place, count, matrix.dtype,
                                    mean ? DDP_AVG : DDP_SUM},
                                   tag.keeping(shared_from_this()));
    }
};

void FactorGradients::Given::clear() {
    rows = 0;
    left.clear();
    right.clear();
    sum.clear();
    whole = false;
}

void FactorGradients::prepare() {
    for (std::int32_t id = 0; id < table_.size(); ++id)
        if (table_[id].factored) params_[id] = {};
}

void FactorGradients::require_rows(std::int32_t param, std::size_t rows) const {
    const Param& p = table_[param];
    const Matrix matrix(p);
    const std::size_t most = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) /
                             std::max(matrix.row_bytes(), std::size_t{1});
    if (rows > most)
        throw CallError(
            {DDP_ERROR_INVALID_ARGUMENT,
             str("'", p.name, "': rows is ", rows, "; no memory holds more than ", most), -1,
             param});
}

// Rows that are no less than the gradient are replaced by their products before more of them come.
void FactorGradients::add(std::int32_t param, const void* left, const void* right,
                          std::size_t rows) {
    const Matrix matrix(table_[param]);
    Given& given = of(param).given;
    if (given.rows > 0 && rows > 0 && !matrix.larger_than(given.rows)) {
        const bool more = !given.sum.empty();
        given.sum.resize(matrix.bytes());
        matrix.multiply(given.sum.data(), given.left, given.right, given.rows, more, 1);
        given.left.clear();
        given.right.clear();
        given.rows = 0;
    }
    // where memory runs out nothing has changed
    make_room(given.left, rows * matrix.n * matrix.item);
    make_room(given.right, rows * matrix.m * matrix.item);
    append(given.left, left, rows * matrix.n * matrix.item);
    append(given.right, right, rows * matrix.m * matrix.item);
    given.rows += rows;
}

WorkPtr FactorGradients::launch(Group& group, std::int32_t param, std::byte* place, double factor,
                                bool mean, const OpTag& tag) {
    const Param& p = table_[param];
    PerParam& s = of(param);
    if (!s.reduction || s.reduction.use_count() > 1) s.reduction = std::make_shared<Reduction>(p);
    Reduction& reduction = *s.reduction;
    reduction.group = GroupRef(group);
    reduction.bucket = tag.memory.used;
    reduction.place = place;
    reduction.mean = mean;
    std::swap(reduction.mine, s.given);
    s.given.clear();
    Given& mine = reduction.mine;
    if (factor == 0) mine.clear();  // not 0 * infinity
    for (auto* part : {&mine.left, &mine.sum})
        if (factor != 1)
            cpu::scale_copy(part->data(), part->data(), part->size() / dtype_size(p.gradient.dtype),
                            p.gradient.dtype, factor);
    return reduction.start(tag);
}

std::uint64_t FactorGradients::collect(std::int32_t param) {
    const auto& reduction = of(param).reduction;
    if (!reduction) return 0;
    reduction->group = {};
    reduction->bucket = nullptr;
    return std::exchange(reduction->own_bytes, 0);
}

}  // namespace libddp
