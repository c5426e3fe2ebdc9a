// The course of training steps: a file for chrome://tracing and Perfetto, and how much happened at
// the same time.
#pragma once

#include <string>
#include <vector>

namespace bench {

class Trace {
public:
    // One after another from top to bottom, a row each.
    enum class Track { backward, pack, communicate, unpack };

    // Adds a span from `begin` to `end`, in milliseconds on any one clock, unless it has no length.
    // lane: spans that may overlap in time have different ones.
    void add(Track track, const std::string& name, double begin, double end, int lane = 0);

    // For how many milliseconds anything lasted there.
    double length(Track track) const;
    // The share of that in which something lasted on the other track as well: 0 to 1, and 0 where
    // there was nothing.
    double overlap(Track track, Track other) const;

    // In the Trace Event Format. Throws std::runtime_error when the file cannot be written.
    void write(const std::string& path) const;

private:
    struct Span {
        Track track;
        int lane;
        std::string name;
        double begin, end;
    };
    using Times = std::vector<std::pair<double, double>>;  // in order, without touching each other

    Times times(Track track) const;

    std::vector<Span> spans_;
};

}  // namespace bench
