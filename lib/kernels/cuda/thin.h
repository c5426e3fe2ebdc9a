// What is done to thin matrices and flags, each by one team, as blocks of a kernel do it. Plain C++ can include this file: a test
// runs it on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_kernels.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/team.h"
#include "kernels/thin_team.h"

namespace libddp::cuda {

constexpr std::uint32_t kThinTeam = 512;
constexpr int kThinRows = 72;  // parameters of a kernel are 4 KiB at most

struct ThinTable {
    ddp_thin_rules rules;
    std::int32_t rows;
    ddp_thin row[kThinRows];
};
static_assert(sizeof(ThinTable) + sizeof(std::uint64_t) <= 4096);  // and the operation

constexpr int kDoubtRows = 169;

struct DoubtTable {
    const std::uint32_t* only_if;
    std::int32_t rows;
    ddp_doubt row[kDoubtRows];
};
static_assert(sizeof(DoubtTable) <= 4096);

// Whether all are finite; all of the team are told.
template <class Format, class Team>
LIBDDP_TEAMWORK bool all_finite(const Team& team, thin::Shared& shared, const typename Format::Stored* values,
                                std::uint64_t count) {
    bool bad = false;
    for (std::uint64_t i = team.rank(); i < count; i += team.size()) {
        const auto value = Format::load(values[i]);
        bad = bad || value - value != 0;
    }
    return !thin::any(team, shared, bad);
}

// Format: F32 or F64.
template <class Format, class Team>
LIBDDP_TEAMWORK void run_thin(const Team& team, thin::Shared& shared, ddp_thin_op op, const ddp_thin& a,
                              const ddp_thin_rules& rules) {
    using T = typename Format::Stored;
    T* data = static_cast<T*>(a.data);
    const std::uint64_t count = std::uint64_t{a.rows} * a.columns;
    const bool bad = op != DDP_THIN_CHECK && a.bad != nullptr && *a.bad != 0;
    switch (op) {
        case DDP_THIN_DRAW:
            return thin::draw(team, shared, data, a.rows, a.columns, rules.seed, a.owner, rules.step);
        case DDP_THIN_ORTHOGONALIZE:
            if (bad) return;
            return a.qr ? thin::householder(team, shared, data, a.rows, a.columns, a.workspace)
                        : thin::gram_schmidt(team, shared, data, a.rows, a.columns, rules.epsilon, a.workspace);
        case DDP_THIN_CHECK:
            if (!all_finite<Format>(team, shared, data, count) && team.rank() == 0) *a.bad = 1;
            return;
        default:
            if (bad || thin::all_zero(team, shared, data, count)) return;
            for (std::uint64_t i = team.rank(); i < count; i += team.size()) static_cast<T*>(a.kept)[i] = data[i];
    }
}

template <class Format, class Team>
LIBDDP_TEAMWORK void run_leave_out(const Team& team, thin::Shared& shared, const ddp_doubt& part,
                                   const std::uint32_t* only_if) {
    if (only_if != nullptr && *only_if == 0) return;
    using T = typename Format::Compute;
    auto* values = static_cast<typename Format::Stored*>(part.gradient);
    if (all_finite<Format>(team, shared, values, part.count)) return;
    for (std::uint64_t i = team.rank(); i < part.count; i += team.size()) values[i] = {};
    if (team.rank() == 0) *static_cast<T*>(part.mark) = quiet_nan<T>();
}

}  // namespace libddp::cuda
