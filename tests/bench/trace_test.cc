// How much of what happens on one track happens while something does on another, and the file.
#include "trace.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "report.h"

namespace bench {
namespace {

using Track = Trace::Track;

TEST(Trace, OverlapIsTheShareOfTheUnion) {
    Trace trace;
    EXPECT_EQ(trace.overlap(Track::communicate, Track::backward), 0);
    trace.add(Track::communicate, "a", 2, 6);
    EXPECT_EQ(trace.overlap(Track::communicate, Track::backward), 0);
    trace.add(Track::backward, "x", 0, 3);
    EXPECT_DOUBLE_EQ(trace.overlap(Track::communicate, Track::backward), 0.25);
    trace.add(Track::backward, "y", 3, 4);
    trace.add(Track::backward, "z", 5, 9);
    EXPECT_DOUBLE_EQ(trace.overlap(Track::communicate, Track::backward), 0.75);
    trace.add(Track::communicate, "b", 4, 10, 1);  // at the same time as a
    EXPECT_DOUBLE_EQ(trace.length(Track::communicate), 8);
    EXPECT_DOUBLE_EQ(trace.overlap(Track::communicate, Track::backward), 6.0 / 8);
    EXPECT_DOUBLE_EQ(trace.overlap(Track::backward, Track::communicate), 6.0 / 8);
    trace.add(Track::unpack, "nothing", 5, 5);
    trace.add(Track::unpack, "less than nothing", 5, 4);
    EXPECT_EQ(trace.length(Track::unpack), 0);
}

TEST(Trace, TheFileHasARowForEachTrackAndLane) {
    Trace trace;
    trace.add(Track::backward, "layer \"1\"", 0.5, 1);
    trace.add(Track::communicate, "bucket 0", 1, 3);
    trace.add(Track::communicate, "bucket 1", 2, 4, 1);
    char path[] = "/tmp/ddp-trace-XXXXXX";
    ASSERT_NE(mkstemp(path), -1);
    trace.write(path);
    std::ifstream file(path);
    const Row events = Row::parse(file)["traceEvents"];
    std::remove(path);
    EXPECT_EQ(events[0]["name"], "layer \"1\"");
    EXPECT_EQ(events[0]["ph"], "X");
    EXPECT_EQ(events[0]["ts"], 500);
    EXPECT_EQ(events[0]["dur"], 500);
    EXPECT_NE(events[1]["tid"], events[2]["tid"]);
    std::vector<std::string> rows;
    for (const auto& event : events)
        if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
    EXPECT_EQ(rows, (std::vector<std::string>{"backward", "communicate", "communicate 1"}));
}

TEST(Trace, AFileThatCannotBeWrittenIsAnError) {
    EXPECT_THROW(Trace().write("/nowhere/at/all"), std::runtime_error);
}

}  // namespace
}  // namespace bench
