#include "output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "util/log.h"
#include "util/printable.h"
#include "util/private_file.h"
#include "util/text.h"

namespace ddprun {
namespace {

constexpr std::size_t kLongestLine = std::size_t{64} * 1024;
constexpr std::size_t kTail = 1024;  // where last words are looked for
constexpr std::size_t kMostWords = 200;
constexpr std::size_t kCongested = std::size_t{1024} * 1024;
constexpr std::size_t kRelieved = std::size_t{256} * 1024;
constexpr std::size_t kLargeChunk = std::size_t{256} * 1024;
// The bytes that a pipe takes without blocking when poll calls it writable (PIPE_BUF).
constexpr std::size_t kSafeChunk = 4096;
constexpr Milliseconds kRetry{1};

// O_NONBLOCK belongs to the open file, which ddprun shares with the shell that started it. Opening
// it again gives ddprun one of its own. -1 where that is not possible (sockets) or wrong (regular
// files, whose position is shared too).
int reopen_without_blocking(int descriptor) {
    struct stat facts {};
    if (fstat(descriptor, &facts) != 0 || !(S_ISFIFO(facts.st_mode) || S_ISCHR(facts.st_mode)))
        return -1;
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    return open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

bool is_regular_file(int descriptor) {
    struct stat facts {};
    return fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
}

bool wants_colour(const Sink& sink) {
    const char* terminal = std::getenv("TERM");
    return sink.is_terminal() && std::getenv("NO_COLOR") == nullptr && terminal &&
           std::strcmp(terminal, "dumb") != 0;
}

std::string make_tag(const Sink& sink, int rank, const std::string& host) {
    libddp::TextOut name, tag;
    name << '[' << host << (host.empty() ? "" : " ") << rank << ']';
    if (wants_colour(sink)) {
        // Cyan, yellow, green, magenta, blue, red.
        static constexpr std::array<int, 6> kColours = {36, 33, 32, 35, 34, 31};
        tag << "\x1b[" << kColours[static_cast<std::size_t>(rank) % kColours.size()] << 'm'
            << name.str() << "\x1b[0m ";
    } else {
        tag << name.str() << ' ';
    }
    return tag.str();
}

// UTC, because the nodes of a job need not share a time zone.
std::string timestamp() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    std::tm parts{};
    gmtime_r(&now.tv_sec, &parts);
    char text[64];
    const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    std::snprintf(text + length, sizeof text - length, ".%03ldZ ", now.tv_nsec / 1'000'000);
    return text;
}

}  // namespace

Sink::Sink(uv_loop_t* loop, int descriptor)
    : original_(descriptor),
      descriptor_(reopen_without_blocking(descriptor)),
      chunk_(kLargeChunk),
      is_terminal_(isatty(descriptor) == 1),
      retry_(loop, [this] { flush(); }) {
    if (descriptor_ >= 0) return;
    descriptor_ = original_;
    if (!is_regular_file(descriptor)) chunk_ = kSafeChunk;
}

Sink::~Sink() {
    if (descriptor_ != original_) close(descriptor_);
}

bool Sink::congested() const {
    return pending_.size() - written_ > kCongested;
}

void Sink::append(std::string_view bytes) {
    if (broken_) return;
    if (empty()) progress_ = Clock::now();
    pending_.append(bytes);
}

bool Sink::write_some() {
    pollfd state{descriptor_, POLLOUT, 0};
    if (poll(&state, 1, 0) != 1) return false;
    const std::size_t size = std::min(chunk_, pending_.size() - written_);
    const ssize_t count = ::write(descriptor_, pending_.data() + written_, size);
    if (count > 0) {
        written_ += static_cast<std::size_t>(count);
        progress_ = Clock::now();
        return true;
    }
    if (count < 0 && errno != EINTR && errno != EAGAIN) {
        const int error = errno;
        discard();
        if (on_failure) on_failure(error);
    }
    return false;
}

void Sink::flush() {
    const bool was_busy = pending_.size() - written_ > kRelieved;
    while (!empty() && write_some()) {
    }
    if (!empty() && patience_ && Clock::now() - progress_ > *patience_) discard();
    if (empty()) {
        pending_.clear();
        written_ = 0;
        retry_.stop();
    } else {
        if (written_ > kCongested) pending_.erase(0, std::exchange(written_, 0));
        retry_.start(kRetry);
    }
    if (was_busy && pending_.size() - written_ <= kRelieved && on_relief) on_relief();
}

void Sink::limit_patience(Milliseconds patience) {
    patience_ = patience;
}

void Sink::discard() {
    broken_ = true;
    pending_.clear();
    written_ = 0;
}

Output::Output(uv_loop_t* loop, OutputStyle style_)
    : style(std::move(style_)), out(loop, STDOUT_FILENO), err(loop, STDERR_FILENO) {
    // Days of training are worth more than their log, so the ranks go on.
    out.on_failure = [this](int error) {
        say_lost(std::string("cannot write standard output any more: ") + std::strerror(error) +
                 ". The ranks go on. What they print there is lost, except in files of --log-dir, "
                 "and ddprun will not end with status 0");
    };
    err.on_failure = [this](int) { lost_ = true; };
}

void Output::limit_patience(Milliseconds patience) {
    out.limit_patience(patience);
    err.limit_patience(patience);
}

void Output::say(const std::string& sentence) {
    line("ddprun" + (style.host.empty() ? "" : " on " + style.host) + ": " + sentence);
}

void Output::say_lost(const std::string& sentence) {
    lost_ = true;
    say(sentence);
}

void Output::line(const std::string& text) {
    if (style.timestamps) err.append(timestamp());
    // Other nodes and the environment have a part in it.
    err.append(libddp::printable(text, "\n\t"));
    err.append("\n");
    err.flush();
}

LogFile::LogFile(std::string path) : path_(std::move(path)) {
    try {
        file_ = libddp::open_private_file(path_, O_APPEND);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(std::string("--log-dir: ") + error.what());
    }
    if (ftruncate(file_.get(), 0) != 0)
        throw std::runtime_error("--log-dir: cannot empty " + path_ + ": " + std::strerror(errno));
}

bool LogFile::write(std::string_view bytes) {
    if (!file_) return false;
    error_ = libddp::write_all(file_.get(), bytes);
    if (error_ != 0) file_.reset();
    return error_ == 0;
}

LineStream::LineStream(Output& output, Sink& sink, int rank, std::shared_ptr<LogFile> log)
    : output_(output),
      sink_(sink),
      tag_(output.style.tags ? make_tag(sink, rank, output.style.host) : ""),
      log_(std::move(log)) {}

std::string LineStream::last_words() const {
    constexpr const char* kBlank = " \t\r\n";
    std::string words;
    // A thread of libddp may still have had something to say.
    for (std::string_view rest = tail_; words.empty() || words.starts_with(libddp::kLogPrefix);) {
        const std::size_t end = rest.find_last_not_of(kBlank);
        if (end == std::string::npos) break;
        const std::size_t before = rest.find_last_of("\r\n", end);
        const std::size_t begin =
            before == std::string::npos ? 0 : rest.find_first_not_of(kBlank, before + 1);
        const std::string_view line = rest.substr(begin, std::min(end + 1 - begin, kMostWords));
        if (words.empty() || !line.starts_with(libddp::kLogPrefix)) words = line;
        rest = rest.substr(0, begin);
    }
    std::replace_if(
        words.begin(), words.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
    return words;
}

void LineStream::feed(std::string_view bytes) {
    tail_.append(bytes.substr(bytes.size() - std::min(bytes.size(), kTail)));
    if (tail_.size() > kTail) tail_.erase(0, tail_.size() - kTail);
    if (output_.style.tags) {
        feed_lines(bytes);
    } else {
        emit("", bytes);
    }
    sink_.flush();
}

void LineStream::feed_lines(std::string_view bytes) {
    while (!bytes.empty()) {
        const std::size_t end = std::min(bytes.find('\n'), bytes.size());
        const std::size_t taken = std::min(end, kLongestLine - partial_.size());
        partial_.append(bytes.substr(0, taken));
        bytes.remove_prefix(taken);
        if (!bytes.empty() && bytes.front() == '\n') {
            bytes.remove_prefix(1);
            // The end of a line whose last piece just filled up has been written with that piece.
            if (!cut_ || !partial_.empty()) emit_line();
            cut_ = false;
        } else if (partial_.size() == kLongestLine) {
            emit_line();
            cut_ = true;
        }
    }
}

void LineStream::emit_line() {
    partial_ += '\n';
    if (output_.style.timestamps) partial_.insert(0, timestamp());
    emit(tag_, partial_);
    partial_.clear();
}

void LineStream::emit(std::string_view tag, std::string_view body) {
    sink_.append(tag);
    sink_.append(body);
    if (log_ && !log_->write(body)) {
        output_.say_lost("cannot write " + log_->path() + " any more (" +
                         std::strerror(log_->error()) + "); its rank's output goes on here only");
        log_.reset();
    }
}

void LineStream::finish() {
    if (partial_.empty()) return;
    emit_line();
    sink_.flush();
}

}  // namespace ddprun
