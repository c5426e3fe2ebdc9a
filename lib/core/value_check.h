// Whether ranks have the same values, of parameters and if asked of buffers: they compare hashes
// every so many synced steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/observer.h"
#include "core/param_table.h"

namespace libddp {

class ValueCheck final : public Observer {
public:
    // intervals: values are compared every so many synced steps, for each of them; never for one
    // that is not positive.
    ValueCheck(const ParamTable& table, std::vector<std::int64_t> intervals, bool buffers);

    // Starts a comparison, behind the buckets, and before any of their results can have changed a
    // value. A rank without inputs trails behind.
    void on_close(ReducerParts& parts) override;
    // All ranks find the same.
    void on_end(ReducerParts& parts) override;
    void on_forget() override { comparison_ = nullptr; }

private:
    // The claim of a rank about its values. It travels as bytes.
    struct Claim {
        std::uint64_t counts = 0, hash = 0;
    };
    bool compares_in(std::int64_t synced_step) const;
    // counts: whether the values of this rank must be like the others'. Collective. tag: the
    // step's.
    void start(Group& group, bool counts, const OpTag& tag);
    // Ends it, if one was started: what differs, the same on every rank.
    std::optional<ErrorInfo> end(Group& group, std::int64_t step, const OpTag& tag);

    using Parties = std::vector<std::vector<std::int32_t>>;

    Parties parties_of(std::size_t entry, const std::vector<std::uint64_t>& hashes,
                       const std::vector<std::int32_t>& ranks) const;
    ErrorInfo describe(const std::vector<std::uint64_t>& hashes,
                       const std::vector<std::int32_t>& ranks, std::int64_t step) const;

    const ParamTable& table_;
    const std::vector<std::int64_t> intervals_;
    const bool buffers_;
    std::vector<std::uint64_t> hashes_;  // of parameters, then of buffers
    std::shared_ptr<std::vector<Claim>> claims_;
    WorkPtr comparison_;
};

}  // namespace libddp
