// Which elements each rank of a roster keeps (kept_shards.h), and where they are in its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/saved_parts.h"
#include "core/together.h"

namespace libddp {

class KeptLayout {
public:
    // A StateArray without its memory, to be told to other ranks.
    struct Array {
        char key[64] = {};
        std::int64_t first = 0, count = 0;
        std::int32_t param = -1, dtype = 0, replicated = 0, reserved = 0;

        bool operator==(const Array&) const = default;
    };
    using Arrays = std::vector<Array>;
    static Arrays describe(const std::vector<StateArray>& arrays);

    // From the arrays of each rank. Throws MISMATCH unless each element is there once.
    KeptLayout(std::vector<Arrays> of_ranks, const ParamTable& table);
    // Collective: rank `root` has it, and others may. `mine` may be null.
    static std::shared_ptr<const KeptLayout> send(Together& together, std::int32_t root, bool gives,
                                                  const std::shared_ptr<const KeptLayout>& mine,
                                                  const ParamTable& table);

    const Arrays& of(std::int32_t rank) const { return of_ranks_[static_cast<std::size_t>(rank)]; }
    std::int32_t world() const { return static_cast<std::int32_t>(of_ranks_.size()); }
    // That a rank keeps.
    std::size_t bytes(std::int32_t rank) const { return bytes_[static_cast<std::size_t>(rank)]; }
    const SavedParts& parts() const { return parts_; }

    // Replicated elements that a lower rank has, too. Both: a rank, and the number of the array
    // among those that it has replicated.
    struct Replica {
        std::int32_t rank, number, lower_rank, lower_number;
        std::int32_t param;
    };
    const std::vector<Replica>& replicas() const { return replicas_; }

private:
    std::vector<Arrays> of_ranks_;
    std::vector<std::size_t> bytes_;
    SavedParts parts_;
    std::vector<Replica> replicas_;
};

}  // namespace libddp
