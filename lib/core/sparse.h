// Gradients that are a set of rows, as of embeddings: gathered from all ranks and summed row by row.
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

class SparseGradients {
public:
    explicit SparseGradients(const ParamTable& table) : table_(table) {}

    // Throws INVALID_ARGUMENT for an index out of range.
    void require_rows(std::int32_t param, const std::int64_t* indices, std::size_t count) const;
    // Adds rows to what this rank gives; they are kept until discard() or collect(). One thread a parameter.
    void add(std::int32_t param, const std::int64_t* indices, const void* values, std::size_t count);
    // Starts the reduction of this rank's rows, each times `factor`, with those of the others. Called under the bucket's
    // tag.
    WorkPtr launch(Group& group, std::int32_t param, double factor, bool mean);
    // The work is done: its result is this parameter's gradient now. Returns how many bytes this rank gave.
    std::uint64_t collect(std::int32_t param);
    void discard(std::int32_t param) { of(param).mine = {}; }

    const SparseRows& result(std::int32_t param) { return of(param).result; }
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

}  // namespace libddp
