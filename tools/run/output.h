// Where ranks' output goes: line by line, tagged, to ddprun's stdout and stderr and to a log file a
// rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "loop.h"
#include "util/descriptors.h"

namespace ddprun {

// A descriptor that is written without blocking the loop: signals must be served while a pager
// holds the terminal.
class Sink {
public:
    Sink(uv_loop_t* loop, int descriptor);
    ~Sink();
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;

    void append(std::string_view bytes);
    // Writes what can be written now; the rest follows by itself.
    void flush();
    bool empty() const { return written_ == pending_.size(); }
    // So much is pending that ranks should not be read from for now.
    bool congested() const;
    // Drops everything from now on if the reader takes nothing for this long.
    void limit_patience(Milliseconds patience);
    bool is_terminal() const { return is_terminal_; }

    std::function<void()> on_relief;  // called when it is no longer congested
    // Called with an errno when nothing can be written any more (a full disk, a reader that has
    // gone): everything is dropped from then on.
    std::function<void(int error)> on_failure;

private:
    bool write_some();
    void discard();

    const int original_;
    int descriptor_;
    std::size_t chunk_;  // how much one write may carry
    bool is_terminal_;
    bool broken_ = false;
    std::string pending_;
    std::size_t written_ = 0;  // bytes of pending_ that have left
    Clock::time_point progress_ = Clock::now();
    std::optional<Milliseconds> patience_;
    Timer retry_;
};

struct OutputStyle {
    bool tags = true;
    bool timestamps = false;
    std::string host{};  // of this ddprun; empty: no other one has ranks in the job
};

class Output {
public:
    Output(uv_loop_t* loop, OutputStyle style);

    // One line of ddprun's own, on stderr.
    void say(const std::string& sentence);
    // A line that already names its speaker.
    void line(const std::string& text);
    // A line of ddprun's own, of something that could not be written where the user wanted it.
    void say_lost(const std::string& sentence);
    // Some of that, or of the ranks' output.
    bool lost() const { return lost_; }
    bool congested() const { return out.congested() || err.congested(); }
    bool empty() const { return out.empty() && err.empty(); }
    void limit_patience(Milliseconds patience);

    const OutputStyle style;
    Sink out;
    Sink err;

private:
    bool lost_ = false;
};

// The file that keeps one rank's output.
class LogFile {
public:
    // Throws std::runtime_error that names the path.
    explicit LogFile(std::string path);

    // Returns false once the file cannot be written any more (a full disk); nothing is written
    // after that.
    bool write(std::string_view bytes);
    // Why it cannot, an errno.
    int error() const { return error_; }
    const std::string& path() const { return path_; }

private:
    std::string path_;
    libddp::Descriptor file_;
    int error_ = 0;
};

// Cuts one rank's stdout or stderr into lines and hands them on whole, so that lines of different
// ranks never mix.
class LineStream {
public:
    LineStream(Output& output, Sink& sink, int rank, std::shared_ptr<LogFile> log);

    void feed(std::string_view bytes);
    // Hands on a last line without an end.
    void finish();
    // The last line with words in it, or its beginning: one of the program's, if there is one.
    std::string last_words() const;
    bool congested() const { return sink_.congested(); }

private:
    void feed_lines(std::string_view bytes);
    void emit_line();
    void emit(std::string_view tag, std::string_view body);

    Output& output_;
    Sink& sink_;
    std::string tag_;
    std::shared_ptr<LogFile> log_;
    std::string partial_;
    std::string tail_;  // of all that came
    bool cut_ = false;  // the piece before this one was cut off for its length
};

}  // namespace ddprun
