// Gradients that are alone in their buckets, because they are reduced in a way of their own and
// without the hook: rows, as of embeddings, and pairs of factors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "core/param_table.h"

namespace libddp {

// Rows of one parameter: indices.size() rows, one after another.
struct SparseRows {
    std::vector<std::int64_t> indices;
    std::vector<std::byte> values;
};

// Gradients that are a set of rows: gathered from all ranks and summed row by row.
class SparseGradients {
public:
    explicit SparseGradients(const ParamTable& table) : table_(table) {}

    // Throws INVALID_ARGUMENT for an index out of range.
    void require_rows(std::int32_t param, const std::int64_t* indices, std::size_t count) const;
    // Adds rows to what this rank gives; they are kept until discard() or collect(). One thread a
    // parameter.
    void add(std::int32_t param, const std::int64_t* indices, const void* values,
             std::size_t count);
    // Starts the reduction of this rank's rows, each times `factor`, with those of the others. tag:
    // the bucket's.
    WorkPtr launch(Group& group, std::int32_t param, double factor, bool mean, const OpTag& tag);
    // The work is done: its result is this parameter's gradient now. Returns how many bytes this
    // rank gave.
    std::uint64_t collect(std::int32_t param);
    void discard(std::int32_t param) { of(param).mine = {}; }

    const SparseRows& result(std::int32_t param) const { return params_.at(param).result; }
    void forget_result(std::int32_t param) { of(param).result = {}; }
    void scale_result(std::int32_t param, double factor);
    // The rows that this rank gives, before launch(); and the result, when the work is done and
    // before collect().
    const SparseRows& given(std::int32_t param) { return of(param).mine; }
    const SparseRows& reduced(std::int32_t param);
    // Makes room for every sparse parameter, so that threads never change the map.
    void prepare();

private:
    struct Reduction;
    struct PerParam {
        SparseRows mine, result;
        std::shared_ptr<Reduction> reduction;
    };
    PerParam& of(std::int32_t param) { return params_.at(param); }

    const ParamTable& table_;
    std::map<std::int32_t, PerParam> params_;
};

// Gradients announced as two factors, whose outer products sum up to them: the factors are gathered
// from all ranks where that is less than the gradients themselves.
//
// A rank counts as sent what it gives to the gathering of factors (as many rows as the longest rank
// has), or its gradient.
class FactorGradients {
public:
    explicit FactorGradients(const ParamTable& table) : table_(table) {}

    // Throws INVALID_ARGUMENT for more rows than any memory holds.
    void require_rows(std::int32_t param, std::size_t rows) const;
    // Adds left^T right to what this rank gives, which is kept until launch() or discard(). One
    // thread a parameter.
    void add(std::int32_t param, const void* left, const void* right, std::size_t rows);
    // The caller's gradient is a part of it too; put_in_place() or its like brings it into the
    // bucket before launch().
    void add_whole(std::int32_t param) { of(param).given.whole = true; }
    bool whole(std::int32_t param) { return of(param).given.whole; }
    // Starts the reduction of this rank's gradient, times `factor`, with those of the others. The
    // result, and before it what add_whole() announced (multiplied already), is in `place`. tag:
    // the bucket's.
    WorkPtr launch(Group& group, std::int32_t param, std::byte* place, double factor, bool mean,
                   const OpTag& tag);
    // The work, if there was one, is done. Returns how many bytes this rank gave.
    std::uint64_t collect(std::int32_t param);
    void discard(std::int32_t param) { of(param).given.clear(); }
    // This rank gives these besides its gradient, before launch(): factors, and the products of
    // earlier ones.
    const std::vector<std::byte>& left(std::int32_t param) { return of(param).given.left; }
    const std::vector<std::byte>& right(std::int32_t param) { return of(param).given.right; }
    const std::vector<std::byte>& products(std::int32_t param) { return of(param).given.sum; }

    // Makes room for every such parameter, so that threads never change the map. Forgets what was
    // given before, and the group that it was given to.
    void prepare();

private:
    struct Matrix;
    struct Reduction;
    // One rank gives these: rows of both factors, their products so far where rows became too many
    // to keep, and whether there is a gradient besides.
    struct Given {
        std::size_t rows = 0;
        std::vector<std::byte> left, right, sum;
        bool whole = false;

        void clear();
    };
    struct PerParam {
        Given given;
        std::shared_ptr<Reduction> reduction;  // kept from step to step for its memory
    };
    PerParam& of(std::int32_t param) { return params_.at(param); }

    const ParamTable& table_;
    std::map<std::int32_t, PerParam> params_;
};

}  // namespace libddp
