#include "process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "child.h"
#include "placement.h"

namespace ddprun {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> result;
    result.reserve(texts.size() + 1);
    // libuv's interface lacks a const; it does not write to these.
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
}

// Closes the ends that belong to the process once it has them, or could not be started.
class WriteEnds {
public:
    explicit WriteEnds(std::array<int, 3> descriptors) : descriptors_(descriptors) {}
    ~WriteEnds() {
        for (const int descriptor : descriptors_) close(descriptor);
    }
    WriteEnds(const WriteEnds&) = delete;
    WriteEnds& operator=(const WriteEnds&) = delete;

private:
    std::array<int, 3> descriptors_;
};

uv_stdio_container_t inherit(int descriptor) {
    uv_stdio_container_t container{};
    container.flags = UV_INHERIT_FD;
    container.data.fd = descriptor;
    return container;
}

}  // namespace

std::string signal_name(int signal) {
    const char* abbreviation = sigabbrev_np(signal);
    return abbreviation ? std::string("SIG") + abbreviation
                        : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
}

std::string Ending::text() const {
    if (signal == 0) return "exited with status " + std::to_string(status);
    return "was killed by signal " + std::to_string(signal) + " (" + signal_name(signal) + ")";
}

Process::Process(int rank, LineStream out, LineStream err, std::function<void(Process&)> on_end)
    : rank_(rank), on_end_(std::move(on_end)), out_(std::move(out)), err_(std::move(err)) {}

int Process::open_stream(uv_loop_t* loop, Stream& stream) {
    const PipeEnds ends = make_pipe(UV_NONBLOCK_PIPE, 0);
    stream.pipe = std::make_unique<ReadPipe>(
        loop, ends.read, [this, &stream](std::string_view bytes) { on_output(stream, bytes); },
        [&stream] { stream.lines.finish(); });
    return ends.write;
}

int Process::open_report(uv_loop_t* loop) {
    const PipeEnds ends = make_pipe(UV_NONBLOCK_PIPE, 0);
    report_ = std::make_unique<ReadPipe>(
        loop, ends.read,
        [this](std::string_view bytes) {
            if (bytes.size() == sizeof exec_error_)
                std::memcpy(&exec_error_, bytes.data(), sizeof exec_error_);
        },
        [] {});
    return ends.write;
}

void Process::start(uv_loop_t* loop, int guard, const std::vector<std::string>& program,
                    const std::vector<std::string>& environment, rlim_t open_files,
                    const std::vector<int>& processors) {
    const int out = open_stream(loop, out_);
    const int err = open_stream(loop, err_);
    const int report = open_report(loop);
    const WriteEnds closer({out, err, report});
    uv_stdio_container_t stdio[kGuardDescriptor + 1] = {
        {}, inherit(out), inherit(err), inherit(report), inherit(guard)};

    const std::vector<std::string> arguments = child_arguments(program, open_files);
    std::vector<char*> argument_pointers = pointers(arguments);
    std::vector<char*> environment_pointers = pointers(environment);
    uv_process_options_t options{};
    options.file = "/proc/self/exe";
    options.args = argument_pointers.data();
    options.env = environment_pointers.data();
    options.stdio = stdio;
    options.stdio_count = kGuardDescriptor + 1;
    // A session of its own: its process group can be signalled as a whole, and no terminal stops
    // it.
    options.flags = UV_PROCESS_DETACHED;
    options.exit_cb = [](uv_process_t* handle, std::int64_t status, int signal) {
        static_cast<Process*>(handle->data)->on_exit({static_cast<int>(status), signal});
    };
    const PlaceGuard placed(processors);
    handle_.reset(new uv_process_t);
    const int started = uv_spawn(loop, handle_.get(), &options);
    handle_->data = this;
    if (started != 0) throw std::runtime_error(uv_strerror(started));
    pid_ = handle_->pid;
}

void Process::signal(int number) const {
    if (running()) kill(pid_, number);
}

void Process::signal_group(int number) const {
    if (pid_ > 0) kill(-pid_, number);
}

bool Process::group_gone() const {
    // Members whose parent was the rank are ddprun's children now (orphans.h).
    while (waitpid(-pid_, nullptr, WNOHANG) > 0) {
    }
    return kill(-pid_, 0) != 0 && errno == ESRCH;
}

Clock::time_point Process::last_active() {
    activity_.look(pid_, Clock::now());
    return activity_.last();
}

void Process::on_output(Stream& stream, std::string_view bytes) {
    activity_.printed(Clock::now());
    stream.lines.feed(bytes);
    if (stream.lines.congested()) stream.pipe->pause();
}

void Process::on_exit(Ending ending) {
    report_->drain();
    report_->close();
    // Before anybody says how the rank ended, its last words come out.
    out_.pipe->drain();
    err_.pipe->drain();
    ending_ = ending;
    on_end_(*this);
}

void Process::resume() {
    if (!out_.ended() && !out_.lines.congested()) out_.pipe->resume();
    if (!err_.ended() && !err_.lines.congested()) err_.pipe->resume();
}

void Process::close_stream(Stream& stream) {
    if (stream.ended()) return;
    stream.pipe->close();
    stream.lines.finish();
}

void Process::close_output() {
    close_stream(out_);
    close_stream(err_);
}

}  // namespace ddprun
