// The elements of a save: which rank has saved each, and where it is in that rank's bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/param_table.h"
#include "core/state_file.h"

namespace libddp {

class SavedParts {
public:
    // world: of the ranks that have saved.
    explicit SavedParts(std::int32_t world) : world_(world) {}

    // False: the parameter has another shape already.
    bool add_shape(const std::string& param, const std::vector<std::int64_t>& shape) {
        return shapes_.emplace(param, shape).first->second == shape;
    }
    void add(std::int32_t rank, const StateEntry& entry) {
        arrays_[{entry.param, entry.key}].push_back({rank, entry});
    }
    // When all are there: throws MISMATCH unless each array begins with element 0 and has each
    // element once.
    void check();

    // For all of the arrays: the bytes of each rank to read. Throws MISMATCH if an array is another
    // one in the save, or not in it.
    std::vector<std::vector<FileCopy>> copies(const std::vector<StateArray>& arrays,
                                              const ParamTable& table) const;

private:
    struct Part {
        std::int32_t rank;
        StateEntry entry;
    };
    using Key = std::pair<std::string, std::string>;

    static void check(const Key& of, std::vector<Part>& parts);
    const std::vector<Part>& find(const StateArray& array, const Param& p) const;

    std::int32_t world_;
    std::map<std::string, std::vector<std::int64_t>> shapes_;
    std::map<Key, std::vector<Part>> arrays_;  // parts in the order of elements
};

}  // namespace libddp
