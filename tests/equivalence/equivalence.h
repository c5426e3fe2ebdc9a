// Shared by the equivalence tests: the cases they run in, the two ways to end a step, comparisons.
//
// Each test restates what one of PyTorch's DDP tests asks for (docs/equivalence.md maps the names)
// and compares with plain loops over the global batch.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/ranks.h"

namespace equivalence {

struct Case {
    int world;
    bool view;   // gradients live in buckets
    bool async;  // finalize_async, a wait for every parameter, finalize
    const char* backend;
    unsigned groups = 1;  // that take turns
};

inline std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (int world = 1; world <= 4; ++world)
        for (bool view : {false, true})
            for (bool async : {false, true}) cases.push_back({world, view, async, "threads"});
    for (const Case& c :
         {Case{2, true, false, "gloo"}, Case{3, false, true, "tcp"}, Case{2, false, true, "shm"},
          Case{3, true, false, "shm"}, Case{2, true, true, "threads", 3},
          Case{3, false, false, "threads", 2}, Case{4, true, false, "tcp", 2}})
        cases.push_back(c);
    return cases;
}

// For tests that have nothing to say of a rank alone.
inline std::vector<Case> cases_of_several() {
    auto cases = all_cases();
    cases.erase(
        std::remove_if(cases.begin(), cases.end(), [](const Case& c) { return c.world == 1; }),
        cases.end());
    return cases;
}

// text and number. (GCC 12 warns of "..." + std::to_string(...) where there is nothing to warn of.)
template <class Number>
std::string numbered(std::string text, Number number) {
    text += std::to_string(number);
    return text;
}

inline std::string text_of(const Case& c) {
    return std::string(c.backend) + numbered("_", c.world) + (c.view ? "_view" : "_copy") +
           (c.async ? "_async" : "") + (c.groups > 1 ? numbered("_round_robin_", c.groups) : "");
}
inline std::string name_of(const testing::TestParamInfo<Case>& info) {
    return text_of(info.param);
}
inline void PrintTo(const Case& c, std::ostream* out) {
    *out << text_of(c);
}

class Equivalence : public testing::TestWithParam<Case> {
protected:
    RankOptions ranks() const {
        RankOptions options(GetParam().world, GetParam().backend);
        options.round_robin = GetParam().groups;
        return options;
    }
    int world() const { return GetParam().world; }
    bool view() const { return GetParam().view; }

    // Ends the step in the one form or the other. Parameters may be waited for in any order: here,
    // as registered.
    void end_step(ddp::Context& context) const {
        if (GetParam().async) {
            context.finalize_async();
            const std::int32_t count = context.stats().param_count;
            for (ddp_param param = 0; param < count; ++param) context.wait(param);
        }
        context.finalize();
    }
};

inline ddp_context_options small_buckets(std::uint64_t bytes = 64) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = bytes;
    return options;
}

inline ddp_context_options with_flags(std::uint32_t flags,
                                      ddp_context_options options = small_buckets()) {
    options.flags |= flags;
    return options;
}

// Values agree up to the rounding of sums in another order.
inline void expect_near(const double* actual, const std::vector<double>& expected,
                        const std::string& what = {}) {
    for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(actual[i], expected[i], 1e-12 * std::max(1.0, std::abs(expected[i])))
            << what << " [" << i << "]";
}

// Every rank has the same bits. Collective.
template <class T>
void expect_same_on_every_rank(ddp_group* group, const T* values, std::size_t count,
                               const std::string& what = {}) {
    const std::size_t bytes = count * sizeof(T),
                      world = static_cast<std::size_t>(ddp_group_world_size(group));
    std::vector<std::uint8_t> all(bytes * world);
    ddp::detail::call(ddp_allgather, group, static_cast<const void*>(values),
                      static_cast<void*>(all.data()), bytes, DDP_U8,
                      static_cast<ddp_work**>(nullptr));
    for (std::size_t rank = 1; rank < world; ++rank)
        EXPECT_TRUE(std::equal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(bytes),
                               all.begin() + static_cast<std::ptrdiff_t>(rank * bytes)))
            << what << ": rank " << rank << " differs from rank 0";
}

}  // namespace equivalence
