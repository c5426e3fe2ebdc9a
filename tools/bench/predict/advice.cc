#include "predict/advice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "report.h"
#include "util/text.h"

namespace bench {
namespace {

constexpr double kNoticeable = 0.02;  // of a step
constexpr double kWorthAHook = 0.1;   // of a step: the time that a hook computes is not counted
constexpr int kRounds = 3;
constexpr double kCapsMb[] = {0.25, 1, 2.5, 5, 10, 25, 50, 100};
constexpr unsigned kGroups[] = {1, 2, 4};

double share_exposed(const StepTime& time) {
    return time.exposed / time.step;
}

std::string percent(double share) {
    return fixed(100 * share) + " %";
}

double default_first_mb(double bucket_mb) {
    return std::min(1.0, bucket_mb);
}

Settings default_settings(int hosts) {
    Settings settings;
    if (hosts == 1) settings.bucket_mb = 1;
    return settings;
}

// Caps of at most so many MiB: the default, then those that are nearest to it.
std::vector<double> caps(double usual_mb, double most_mb) {
    std::vector<double> found;
    for (const double mb : kCapsMb)
        if (mb <= most_mb) found.push_back(mb);
    const auto distance = [&](double mb) { return std::abs(std::log(mb / usual_mb)); };
    std::stable_sort(found.begin(), found.end(),
                     [&](double a, double b) { return distance(a) < distance(b); });
    return found;
}

// Each of these functions returns the same settings with all values of one setting. The default
// comes first.

std::vector<Settings> with_caps(const Settings& now, const Settings& usual) {
    const bool first_is_default = now.first_bucket_mb == default_first_mb(now.bucket_mb);
    std::vector<Settings> all;
    for (const double mb : caps(usual.bucket_mb, std::numeric_limits<double>::infinity())) {
        all.push_back(now);
        all.back().bucket_mb = mb;
        if (first_is_default) all.back().first_bucket_mb = default_first_mb(mb);
    }
    return all;
}

std::vector<Settings> with_first_caps(const Settings& now, const Settings&) {
    std::vector<Settings> all;
    for (const double mb : caps(default_first_mb(now.bucket_mb), now.bucket_mb)) {
        all.push_back(now);
        all.back().first_bucket_mb = mb;
    }
    return all;
}

std::vector<Settings> with_groups(const Settings& now, const Settings&) {
    std::vector<Settings> all;
    for (const unsigned groups : kGroups) {
        all.push_back(now);
        all.back().groups = groups;
    }
    return all;
}

std::string bytes_of(double mb) {
    libddp::TextOut text;
    text << static_cast<std::int64_t>(mb * 1048576) << " (" << mb << " MiB)";
    return text.str();
}

// One of those that the search changes, in the words of a program.
struct Setting {
    const char* name;
    std::vector<Settings> (*values)(const Settings& now, const Settings& usual);
    std::string (*value)(const Settings&);
    const char* remark;
};

const Setting kSettings[] = {
    {"bucket_cap_bytes", with_caps,
     [](const Settings& settings) { return bytes_of(settings.bucket_mb); }, ""},
    {"first_bucket_cap_bytes", with_first_caps,
     [](const Settings& settings) { return bytes_of(settings.first_bucket_mb); }, ""},
    {"round_robin", with_groups,
     [](const Settings& settings) { return std::to_string(settings.groups); },
     ". Leave it out with nccl"},
};

class Search {
public:
    Search(int hosts, const std::function<StepTime(const Settings&)>& step)
        : hosts_(hosts), step_(step), usual_(default_settings(hosts)), found_(usual_) {}

    Advice run() {
        time(usual_);
        for (int round = 0; round < kRounds; ++round) {
            const Settings before = found_;
            choose(with_caps(found_, usual_));
            choose(with_first_caps(found_, usual_));
            choose(with_groups_and_caps());
            if (found_ == before) break;
        }
        reset_what_saves_little();
        std::string text = of_settings();
        note_advised(found_);
        text += of_hooks();
        return {std::move(tried_), found_, std::move(text)};
    }

private:
    Tried* find(const Settings& settings) {
        const auto same = [&](const Tried& tried) { return tried.settings == settings; };
        const auto at = std::find_if(tried_.begin(), tried_.end(), same);
        return at == tried_.end() ? nullptr : &*at;
    }
    StepTime time(const Settings& settings) {
        if (const Tried* tried = find(settings)) return tried->time;
        tried_.push_back({settings, step_(settings)});
        return tried_.back().time;
    }
    double saving(const Settings& from, const Settings& to) {
        return 1 - time(to).step / time(from).step;
    }
    void note_advised(const Settings& settings) { find(settings)->advised = true; }

    // Takes the first of these settings, or those after them that save something.
    void choose(const std::vector<Settings>& all) {
        if (share_exposed(time(found_)) < kNoticeable) return;  // nothing can save more
        found_ = all.front();
        for (const Settings& next : all)
            if (saving(found_, next) >= kNoticeable) found_ = next;
    }
    // The settings found, then several groups with all caps, because they hide the latencies of
    // small buckets.
    std::vector<Settings> with_groups_and_caps() const {
        std::vector<Settings> all{found_};
        for (Settings& in_turn : with_groups(found_, usual_)) {
            if (in_turn.groups == 1) continue;
            in_turn.first_bucket_mb = default_first_mb(in_turn.bucket_mb);
            for (const Settings& next : with_caps(in_turn, usual_)) all.push_back(next);
        }
        return all;
    }
    void reset_what_saves_little() {
        Settings before;
        do {
            before = found_;
            for (const Setting& setting : kSettings) {
                const Settings without = setting.values(found_, usual_).front();
                if (saving(without, found_) < kNoticeable) found_ = without;
            }
        } while (found_ != before);
    }

    std::string of_settings() {
        const StepTime usual = time(usual_), found = time(found_);
        const std::string keep = "Keep libddp's defaults";
        if (share_exposed(usual) < kNoticeable)
            return keep + ": " + of_communication(usual) + ".\n";
        std::string text = found_ == usual_
                               ? keep + ". A step takes " + fixed(usual.step) + " ms:\n"
                               : "With these settings a step takes " + fixed(found.step) + " ms, " +
                                     percent(saving(usual_, found_)) +
                                     " less than with libddp's defaults (" + fixed(usual.step) +
                                     " ms). Each saving is beside the other settings:\n";
        for (const Setting& setting : kSettings)
            text += std::string("  ") + setting.name + of_setting(setting) + '\n';
        return text;
    }
    std::string of_setting(const Setting& setting) {
        const std::vector<Settings> all = setting.values(found_, usual_);
        if (found_ != all.front())
            return " = " + setting.value(found_) + " saves " +
                   percent(saving(all.front(), found_)) + setting.remark;
        const std::string keep = ": keep the default, " + setting.value(found_) + ". ";
        if (share_exposed(time(found_)) < kNoticeable)
            return keep + "No other value can save " + percent(kNoticeable);
        double most = 0;
        for (const Settings& other : all) most = std::max(most, saving(found_, other));
        return keep + "Other values save " + (most < 5e-4 ? "nothing" : "at most " + percent(most));
    }
    static std::string of_communication(const StepTime& time) {
        return "communication that nothing hides takes " + percent(share_exposed(time)) +
               " of a step";
    }

    std::string of_hooks() {
        const StepTime now = time(found_);
        if (share_exposed(now) < kNoticeable) return "";
        if (hosts_ == 1) return "On one host no hook is worth its time.\n";
        const std::string uncounted = ", and the time that a hook computes is not counted.\n";
        if (share_exposed(now) < kWorthAHook)
            return "No hook is worth it: " + of_communication(now) + uncounted;
        Settings halved = found_;
        halved.hook = "fp16";
        const double saved = saving(found_, halved);
        if (saved < kWorthAHook)
            return "No hook is worth it: fp16 saves " + percent(saved) + " of a step" + uncounted;
        note_advised(halved);
        std::string text =
            "A hook changes numbers, so try it last. With fp16 or bf16 a step takes " +
            fixed(time(halved).step) + " ms, " + percent(saved) +
            " less. The time that a hook computes is not counted: measure a step, and compare "
            "the accuracy.\n";
        text += of_quantize(halved);
        text += of_powersgd(halved);
        return text;
    }
    // Only a remark: it changes numbers more.
    std::string of_quantize(const Settings& halved) {
        Settings quartered = found_;
        quartered.hook = "quantize";
        const double saved = saving(halved, quartered);
        if (share_exposed(time(halved)) < kWorthAHook || saved < kWorthAHook) return "";
        return "With quantize a step takes " + fixed(time(quartered).step) + " ms, " +
               percent(saved) + " less than with 16 bits.\n";
    }
    // Only a remark: it needs tuning.
    std::string of_powersgd(const Settings& halved) {
        if (share_exposed(time(halved)) < kWorthAHook) return "";
        Settings ranked = found_;
        ranked.hook = "powersgd";
        ranked.hook_options = "start=0";
        if (saving(halved, ranked) < kWorthAHook) return "";
        return "Even then " + of_communication(time(halved)) + ". With powersgd a step takes " +
               fixed(time(ranked).step) +
               " ms, but powersgd changes numbers more and needs tuning.\n";
    }

    const int hosts_;
    const std::function<StepTime(const Settings&)>& step_;
    const Settings usual_;
    Settings found_;
    std::vector<Tried> tried_;
};

}  // namespace

Advice advise(int hosts, const std::function<StepTime(const Settings&)>& step) {
    return Search(hosts, step).run();
}

}  // namespace bench
