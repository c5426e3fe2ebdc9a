// The reducer does in every generated case what the reference does, on every rank, in every byte of
// every gradient.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/detail/Configuration.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "property/generate.h"
#include "property/rank_run.h"
#include "property/reference.h"
#include "property/worlds.h"

namespace property {
namespace {

// Sets the parameters that RC_PARAMS does not, before RapidCheck reads it: the number of cases, and
// a seed for this run. RapidCheck then prints all of it.
void configure() {
    rc::detail::Configuration defaults;
    defaults.testParams.maxSuccess = DDP_PROPERTY_CASES;
    std::random_device random;
    defaults.testParams.seed = std::uint64_t{random()} << 32 | random();
    const char* given = std::getenv("RC_PARAMS");
    const auto settings = rc::detail::configFromString(given ? given : "", defaults);
    setenv("RC_PARAMS", rc::detail::configToString(settings).c_str(), 1);
}

using Clock = std::chrono::steady_clock;
// How long a case that fails is made smaller. Well below the test's timeout.
constexpr std::chrono::seconds kShrinking{120};

// Empty, or what went wrong.
std::string run_case(const Case& c, Worlds& worlds) {
    const std::vector<Moment> moments = expect(c);
    std::mutex mutex;
    std::string result;
    const auto note = [&](const std::string& text) {
        const std::lock_guard lock(mutex);
        if (!text.empty()) result += text + "\n";
    };
    const auto errors =
        worlds.get(c.world, c.backend, c.groups).run([&](int rank, ddp_group* group) {
            RankRun run(c, moments, rank, group);
            run.run();
            note(run.difference());
        });
    for (const auto& error : errors) note(error);
    return result;
}

TEST(ReducerProperty, EveryGradientIsWhatTheReferenceSays) {
    configure();
    Worlds worlds;
    std::optional<Clock::time_point> failed_at;
    std::string last_failure;
    const bool passed = rc::check("every gradient is what the reference says", [&] {
        const Case c = *any_case();
        RC_TAG(std::string(reduction_name(c.reduction)), std::string(discovery_name(c.discovery)),
               std::string(c.shard ? "shard" : "whole"));
        if (failed_at && Clock::now() > *failed_at + kShrinking) return;
        const std::string wrong = run_case(c, worlds);
        if (wrong.empty()) return;
        // At once, and with a bound on what follows: if the case hangs, making it smaller may take
        // very long.
        if (!failed_at)
            std::cerr << "The first case that fails, before it is made smaller:\n"
                      << c << "\n"
                      << wrong;
        if (!failed_at) failed_at = Clock::now();
        worlds.set_timeout(2'000);
        last_failure = wrong;
        RC_FAIL(wrong);
    });
    EXPECT_TRUE(passed) << last_failure;
}

}  // namespace
}  // namespace property
