// One rank: its process, its process group, and the pipes that carry its output.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "activity.h"
#include "loop.h"
#include "output.h"

namespace ddprun {

// How a process ended.
struct Ending {
    int status = 0;
    int signal = 0;

    bool ok() const { return status == 0 && signal == 0; }
    // As a shell reports it: 128 + the signal's number for a signal.
    int code() const { return signal != 0 ? 128 + signal : status; }
    // "exited with status 3", "was killed by signal 9 (SIGKILL)".
    std::string text() const;
};

// "SIGKILL".
std::string signal_name(int signal);

class Process {
public:
    Process(int rank, LineStream out, LineStream err, std::function<void(Process&)> on_end);
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    // guard: the pipe to it. processors: those it may use; none: as ddprun. Throws
    // std::runtime_error that says why the process could not be started.
    void start(uv_loop_t* loop, int guard, const std::vector<std::string>& program,
               const std::vector<std::string>& environment, rlim_t open_files,
               const std::vector<int>& processors);

    int rank() const { return rank_; }
    pid_t pid() const { return pid_; }
    bool running() const { return pid_ > 0 && !ending_; }
    const std::optional<Ending>& ending() const { return ending_; }
    // The errno that kept the program from running, or 0.
    int exec_error() const { return exec_error_; }

    // The last line that it wrote to stderr.
    std::string last_words() const { return err_.lines.last_words(); }

    void signal(int number) const;
    void signal_group(int number) const;
    // Nothing is left of the process group. Only for a process that has ended.
    bool group_gone() const;

    // When it last printed or computed; the first call counts as well.
    Clock::time_point last_active();

    // All of its output has been read.
    bool drained() const { return out_.ended() && err_.ended(); }
    // Reads on after the sinks were congested.
    void resume();
    void close_output();

private:
    struct Stream {
        explicit Stream(LineStream lines_) : lines(std::move(lines_)) {}
        bool ended() const { return !pipe || pipe->ended(); }

        LineStream lines;
        std::unique_ptr<ReadPipe> pipe;
    };

    void on_output(Stream& stream, std::string_view bytes);
    void on_exit(Ending ending);
    static void close_stream(Stream& stream);
    // Returns the end that the process writes to.
    int open_stream(uv_loop_t* loop, Stream& stream);
    int open_report(uv_loop_t* loop);

    const int rank_;
    std::function<void(Process&)> on_end_;
    pid_t pid_ = 0;
    std::optional<Ending> ending_;
    int exec_error_ = 0;
    Activity activity_;
    Stream out_;
    Stream err_;
    std::unique_ptr<ReadPipe> report_;
    Handle<uv_process_t> handle_;
};

}  // namespace ddprun
