// The file of a store as somebody else left it: another participant is there, so that it is not
// begun afresh.
#include "rendezvous/file_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "fuzz/target.h"

namespace fuzz::file_log {
namespace {

using namespace libddp;

// Memory, where the system has it as files.
std::string temporary_file() {
    const bool in_memory = access("/dev/shm", W_OK) == 0;
    std::string path = (in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
                       "/fuzz-of-ddp-XXXXXX";
    const int fd = mkstemp(path.data());
    check(fd >= 0, "there is no temporary file");
    close(fd);
    return path;
}

class File {
public:
    File()
        : path_(temporary_file()),
          other_(std::make_unique<FileLog>(path_, Deadline::after_ms(10'000))),
          fd_(open(path_.c_str(), O_RDWR | O_CLOEXEC)) {}
    ~File() {
        other_.reset();
        close(fd_);
        unlink(path_.c_str());
    }

    const std::string& path() const { return path_; }
    void fill(std::string_view bytes) const {
        const bool good = ftruncate(fd_, 0) == 0 && pwrite(fd_, bytes.data(), bytes.size(), 0) >= 0;
        check(good, "the temporary file cannot be written");
    }

private:
    const std::string path_;
    std::unique_ptr<FileLog> other_;
    const int fd_;
};

// The header is at the beginning, and the log somewhere behind it: a seed need not hold what is
// between.
std::string contents(Reader& bytes) {
    std::string text(bytes.take(40));
    if (text.size() < 40) return text;
    text.resize(4096);
    text += bytes.rest();
    return text;
}

}  // namespace

DDP_FUZZ_TARGET(file_log, input) {
    static File file;
    Reader bytes(input);
    file.fill(contents(bytes));
    accepts([&] {
        FileLog log(file.path(), Deadline::after_ms(1000));
        StoreState state;
        accepts([&] { log.replay(state); });
        for (const std::uint64_t owner : state.owners()) accepts([&] { log.alive(owner); });
        accepts([&] { log.changed(); });
        const Request request{Op::kSet, {"key"}, {"value"}};
        accepts([&] {
            if (!state.apply(log.owner(), request)) return;
            log.append(log.owner(), request, state);
            log.replay(state);
        });
    });
}

}  // namespace fuzz::file_log
