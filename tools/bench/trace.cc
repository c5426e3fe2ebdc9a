#include "trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "util/text.h"
#include "write_text.h"

namespace bench {
namespace {

constexpr const char* kTracks[] = {"backward", "pack", "communicate", "unpack"};
constexpr int kLanes = 64;

double sum(const std::vector<std::pair<double, double>>& times) {
    double total = 0;
    for (const auto& [begin, end] : times) total += end - begin;
    return total;
}

}  // namespace

void Trace::add(Track track, const std::string& name, double begin, double end, int lane) {
    if (begin < end) spans_.push_back({track, lane, name, begin, end});
}

Trace::Times Trace::times(Track track) const {
    Times all;
    for (const Span& span : spans_)
        if (span.track == track) all.emplace_back(span.begin, span.end);
    std::sort(all.begin(), all.end());
    Times merged;
    for (const auto& [begin, end] : all) {
        if (merged.empty() || begin > merged.back().second)
            merged.emplace_back(begin, end);
        else
            merged.back().second = std::max(merged.back().second, end);
    }
    return merged;
}

double Trace::length(Track track) const {
    return sum(times(track));
}

double Trace::overlap(Track track, Track other) const {
    const Times mine = times(track), theirs = times(other);
    Times both;
    for (std::size_t i = 0, k = 0; i < mine.size() && k < theirs.size();) {
        const double begin = std::max(mine[i].first, theirs[k].first),
                     end = std::min(mine[i].second, theirs[k].second);
        if (begin < end) both.emplace_back(begin, end);
        ++(mine[i].second < theirs[k].second ? i : k);
    }
    return mine.empty() ? 0 : sum(both) / sum(mine);
}

void Trace::write(const std::string& path) const {
    auto events = nlohmann::ordered_json::array();
    std::map<int, std::string> rows;
    for (const Span& span : spans_) {
        const int track = static_cast<int>(span.track), row = track * kLanes + span.lane;
        rows[row] = kTracks[track];
        if (span.lane > 0) rows[row].append(" ").append(std::to_string(span.lane));
        // Times are in microseconds.
        events.push_back({{"name", span.name},
                          {"cat", kTracks[track]},
                          {"ph", "X"},
                          {"pid", 0},
                          {"tid", row},
                          {"ts", 1e3 * span.begin},
                          {"dur", 1e3 * (span.end - span.begin)}});
    }
    const auto tell = [&](int row, const char* what, const char* key,
                          const nlohmann::ordered_json& value) {
        events.push_back(
            {{"name", what}, {"ph", "M"}, {"pid", 0}, {"tid", row}, {"args", {{key, value}}}});
    };
    for (const auto& [row, name] : rows) {
        tell(row, "thread_name", "name", name);
        tell(row, "thread_sort_index", "sort_index", row);
    }
    nlohmann::ordered_json all;
    all["traceEvents"] = std::move(events);
    all["displayTimeUnit"] = "ms";
    libddp::write_file(path, all.dump() + "\n");
}

}  // namespace bench
