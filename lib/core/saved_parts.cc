#include "core/saved_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

template <class... Text>
[[noreturn]] void mismatch(std::int32_t param, const Text&... text) {
    throw CallError({DDP_ERROR_MISMATCH, str(text...), -1, param});
}

}  // namespace

void SavedParts::check() {
    for (auto& [of, parts] : arrays_) check(of, parts);
}

std::vector<std::vector<FileCopy>> SavedParts::copies(const std::vector<StateArray>& arrays,
                                                      const ParamTable& table) const {
    std::vector<std::vector<FileCopy>> copies(static_cast<std::size_t>(world_));
    for (const StateArray& array : arrays) {
        if (array.count == 0) continue;
        const auto& parts = find(array, table[array.param]);
        std::int64_t next = array.first;
        const std::int64_t end = array.first + array.count;
        for (const Part& part : parts) {
            const StateEntry& entry = part.entry;
            if (next == end || entry.first + entry.count <= next) continue;
            const std::int64_t count = std::min(end, entry.first + entry.count) - next;
            const auto size = dtype_size(array.dtype);
            copies[static_cast<std::size_t>(part.rank)].push_back(
                {entry.offset + static_cast<std::uint64_t>(next - entry.first) * size,
                 static_cast<std::size_t>(count) * size,
                 array.data + static_cast<std::size_t>(next - array.first) * size});
            next += count;
        }
        if (next != end)
            mismatch(array.param, "elements ", next, " to ", end - 1, " of '", array.key, "' of '",
                     table[array.param].name, "' are missing: saved are 0 to ", next - 1);
    }
    return copies;
}

// From 0 on, each element once.
void SavedParts::check(const Key& of, std::vector<Part>& parts) {
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
        return std::tie(a.entry.first, a.rank) < std::tie(b.entry.first, b.rank);
    });
    std::int64_t next = 0;
    std::int32_t before = parts.front().rank;
    for (const auto& [rank, entry] : parts) {
        if (entry.dtype != parts.front().entry.dtype)
            mismatch(-1, "'", of.second, "' of '", of.first, "' is ",
                     dtype_name(parts.front().entry.dtype), " on rank ", parts.front().rank,
                     " and ", dtype_name(entry.dtype), " on rank ", rank);
        if (entry.first > next)
            mismatch(-1, "elements ", next, " to ", entry.first - 1, " of '", of.second, "' of '",
                     of.first, "' were saved by no rank");
        if (entry.first < next)
            mismatch(-1, "element ", entry.first, " of '", of.second, "' of '", of.first,
                     "' was saved by rank ", before, " and by rank ", rank,
                     "; are these replicated?");
        next += entry.count;
        before = rank;
    }
}

const std::vector<SavedParts::Part>& SavedParts::find(const StateArray& array,
                                                      const Param& p) const {
    const auto shape = shapes_.find(p.name);
    if (shape == shapes_.end())
        mismatch(array.param, "parameter '", p.name, "' is not in the save",
                 shapes_.empty() ? ", which is empty"
                                 : str("; it has '", shapes_.begin()->first, "'",
                                       shapes_.size() > 1 ? " and others" : ""));
    if (shape->second != p.shape)
        mismatch(array.param, "parameter '", p.name, "' was saved with the shape ",
                 nlohmann::json(shape->second).dump(), " and has ", nlohmann::json(p.shape).dump());
    const auto found = arrays_.find({p.name, array.key});
    if (found == arrays_.end()) {
        std::string keys;
        for (const auto& [of, parts] : arrays_)
            if (of.first == p.name) keys += str(keys.empty() ? "'" : ", '", of.second, "'");
        mismatch(array.param, "'", p.name, "' was saved without '", array.key, "'; it has ", keys);
    }
    const ddp_dtype saved = found->second.front().entry.dtype;
    if (saved != array.dtype)
        mismatch(array.param, "'", array.key, "' of '", p.name, "' was saved as ",
                 dtype_name(saved), "; the array is ", dtype_name(array.dtype));
    return found->second;
}

}  // namespace libddp
