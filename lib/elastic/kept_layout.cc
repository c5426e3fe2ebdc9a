#include "elastic/kept_layout.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "util/error.h"

namespace libddp {
namespace {

std::string key_of(const KeptLayout::Array& array) {
    return {array.key, strnlen(array.key, sizeof array.key)};
}

std::size_t size_of(const KeptLayout::Array& array) {
    StateArray described;
    described.count = array.count;
    described.dtype = array.dtype;
    return described.bytes();
}

}  // namespace

KeptLayout::Arrays KeptLayout::describe(const std::vector<StateArray>& arrays) {
    Arrays described;
    for (const StateArray& array : arrays) {
        Array& one = described.emplace_back();
        array.key.copy(one.key, sizeof one.key);
        one.first = array.first;
        one.count = array.count;
        one.param = array.param;
        one.dtype = array.dtype;
        one.replicated = array.replicated ? 1 : 0;
    }
    return described;
}

KeptLayout::KeptLayout(std::vector<Arrays> of_ranks, const ParamTable& table)
    : of_ranks_(std::move(of_ranks)), parts_(world()) {
    for (const Param& p : table.params()) parts_.add_shape(p.name, p.shape);
    std::map<std::tuple<std::string, std::int32_t, std::int64_t, std::int64_t>,
             std::pair<std::int32_t, std::int32_t>>
        replicated;
    for (std::int32_t rank = 0; rank < world(); ++rank) {
        std::size_t offset = 0;
        std::int32_t number = 0;
        for (const Array& array : of(rank)) {
            const std::string key = key_of(array);
            bool first = true;
            if (array.replicated != 0) {
                const auto [place, is_new] = replicated.try_emplace(
                    {key, array.param, array.first, array.count}, std::pair(rank, number));
                first = is_new;
                if (!first)
                    replicas_.push_back(
                        {rank, number, place->second.first, place->second.second, array.param});
                ++number;
            }
            if (first)
                parts_.add(rank, {table[array.param].name, key, array.first, array.count,
                                  array.dtype, offset});
            offset += size_of(array);
        }
        bytes_.push_back(offset);
    }
    parts_.check();
}

std::shared_ptr<const KeptLayout> KeptLayout::send(Together& together, std::int32_t root,
                                                   bool gives,
                                                   const std::shared_ptr<const KeptLayout>& mine,
                                                   const ParamTable& table) {
    std::uint64_t world = gives ? static_cast<std::uint64_t>(mine->world()) : 0;
    together.share(&world, sizeof world, root);
    std::vector<std::uint64_t> counts(world);
    for (std::size_t rank = 0; rank < world && gives; ++rank)
        counts[rank] = mine->of_ranks_[rank].size();
    together.share(counts.data(), counts.size() * sizeof counts[0], root);
    std::vector<Arrays> of_ranks(world);
    for (std::size_t rank = 0; rank < world; ++rank) {
        Arrays& arrays = of_ranks[rank];
        if (gives)
            arrays = mine->of_ranks_[rank];
        else
            arrays.resize(counts[rank]);
        together.share(arrays.data(), arrays.size() * sizeof(Array), root);
    }
    return mine ? mine : std::make_shared<const KeptLayout>(std::move(of_ranks), table);
}

}  // namespace libddp
