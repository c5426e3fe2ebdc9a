#include "rendezvous/file_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "launch/secret_file.h"
#include "rendezvous/store_engine.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

constexpr std::string_view kMagic = "ddpfile3";  // the last letter is the version
constexpr std::size_t kHeaderSize = 8 + 4 * 8;
constexpr std::uint64_t kFenceAt = kHeaderSize;
constexpr std::uint64_t kFirstRecord = 4096;
constexpr off_t kMutexByte = off_t{1} << 62;
constexpr off_t kLiveBytes = kMutexByte + 1;
// Numbers beyond these are damage. Both, and their bytes to lock, are far below the largest offset
// of a file.
constexpr std::uint64_t kLastOwner = std::uint64_t{1} << 61;
constexpr std::uint64_t kLastByte = std::uint64_t{1} << 61;
constexpr std::uint64_t kSmallLog = std::uint64_t{8} << 20;

[[noreturn]] void io_error(const std::string& path, const char* what, int error) {
    std::string why = std::generic_category().message(error);
    if (error == EACCES || error == EPERM || error == EROFS)
        fail(DDP_ERROR_PERMISSION_DENIED, "the store file ", path, " cannot be ", what, ": ", why);
    if (error == EINVAL || error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS)
        fail(DDP_ERROR_UNSUPPORTED, "the store file ", path, " cannot be ", what, ": ", why,
             "; its file system must support open-file-description locks");
    if (lacks_descriptors(error))
        fail(DDP_ERROR_LIMIT, "the store file ", path, " cannot be ", what, ": ", why,
             kRaiseOpenFiles);
    fail(DDP_ERROR_IO, "the store file ", path, " cannot be ", what, ": ", why);
}

// A write that ended with EFBIG.
[[noreturn]] void too_large(const std::string& path) {
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        io_error(path, "written", EFBIG);
    fail(DDP_ERROR_IO, "the store file ", path, " cannot be written beyond ", limit.rlim_cur,
         " bytes, this process's limit of file sizes (RLIMIT_FSIZE); raise it (ulimit -f) or use a "
         "store over tcp");
}

struct flock range(short type, off_t start, off_t length) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = length;
    return lock;
}

// False: somebody else holds it.
bool lock_byte(int fd, off_t byte, const std::string& path) {
    auto wanted = range(F_WRLCK, byte, 1);
    while (fcntl(fd, F_OFD_SETLK, &wanted) != 0) {
        if (errno == EAGAIN || errno == EACCES) return false;
        if (errno != EINTR) io_error(path, "locked", errno);
    }
    return true;
}

void unlock_byte(int fd, off_t byte) {
    auto wanted = range(F_UNLCK, byte, 1);
    fcntl(fd, F_OFD_SETLK, &wanted);
}

// length 0: to the end of all offsets.
bool held_by_others(int fd, off_t start, off_t length, const std::string& path) {
    auto probe = range(F_WRLCK, start, length);
    if (fcntl(fd, F_OFD_GETLK, &probe) != 0) io_error(path, "locked", errno);
    return probe.l_type != F_UNLCK;
}

std::string read_at(int fd, std::uint64_t at, std::size_t size, const std::string& path) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
        ssize_t count = pread(fd, bytes.data() + got, size - got, static_cast<off_t>(at + got));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) io_error(path, "read", errno);
        if (count == 0) break;
        got += static_cast<std::size_t>(count);
    }
    bytes.resize(got);
    return bytes;
}

}  // namespace

FileLog::FileLog(const std::string& path, const Deadline& deadline) : path_(path) {
    try {
        while (!join(deadline)) leave();
    } catch (...) {
        leave();
        throw;
    }
}

FileLog::~FileLog() {
    leave();
}

void FileLog::leave() {
    fd_.reset();
}

// False: the file was deleted by its last participant while this one was on the way in.
bool FileLog::join(const Deadline& deadline) {
    static const std::atomic<bool> never{false};
    open_file();
    if (!lock(deadline, never))
        fail(DDP_ERROR_TIMEOUT, "the store file ", path_,
             " stayed locked by another process until the time was over");
    if (!still_at_path()) return false;
    const bool begins = fresh_or_stale();
    require_private();
    Header header;
    if (begins)
        begin_afresh(header);
    else
        header = read_header();
    owner_ = header.next_owner++;
    if (!lock_byte(fd_.get(), kLiveBytes + static_cast<off_t>(owner_), path_))
        fail(DDP_ERROR_IO, "the store file ", path_, " is damaged: participant ", owner_,
             " exists already");
    write_header(header);
    unlock();
    return true;
}

void FileLog::begin_afresh(Header& header) {
    const std::int64_t fence = read_fence();
    if (ftruncate(fd_.get(), 0) != 0) io_error(path_, "written", errno);
    header.start = header.end = kFirstRecord;
    header.generation = 1;
    if (fence > 0) write_fence(fence);
}

// 0: nobody has raised it, and the file may end before.
std::int64_t FileLog::read_fence() const {
    const std::string bytes = read_at(fd_.get(), kFenceAt, sizeof(std::uint64_t), path_);
    if (bytes.size() != sizeof(std::uint64_t)) return 0;
    const std::uint64_t fence = ByteReader(bytes).u64();
    if (fence > std::uint64_t{kLastFence})
        fail(DDP_ERROR_IO, "the store file ", path_,
             " is damaged: no participant writes the fence ", fence);
    return static_cast<std::int64_t>(fence);
}

void FileLog::write_fence(std::int64_t fence) {
    ByteWriter out;
    out.u64(static_cast<std::uint64_t>(fence));
    write(out.take(), kFenceAt);
}

std::int64_t FileLog::raise_fence(std::int64_t at_least) {
    const std::int64_t kept = read_fence();
    if (kept >= at_least) return kept;
    write_fence(at_least);
    return at_least;
}

void FileLog::open_file() {
    fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd_) io_error(path_, "opened", errno);
    struct stat info {};
    if (fstat(fd_.get(), &info) != 0) io_error(path_, "opened", errno);
    if (!S_ISREG(info.st_mode))
        fail(DDP_ERROR_INVALID_ARGUMENT, "uri: ", path_, " is not a regular file");
}

bool FileLog::still_at_path() const {
    struct stat mine {};
    struct stat there {};
    if (fstat(fd_.get(), &mine) != 0) io_error(path_, "opened", errno);
    if (lstat(path_.c_str(), &there) != 0) return false;
    return mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

// Whether the file has no living participants, so that this one starts it afresh. Throws rather
// than overwrite anything that is not a store's.
bool FileLog::fresh_or_stale() {
    std::string magic = read_at(fd_.get(), 0, kMagic.size(), path_);
    if (magic.empty()) return true;
    if (magic.size() != kMagic.size() || magic.compare(0, 7, kMagic, 0, 7) != 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "uri: ", path_,
             " exists and is not a libddp store file; name another file");
    if (!others_alive()) return true;
    if (magic != kMagic)
        fail(DDP_ERROR_UNSUPPORTED, "the store file ", path_,
             " is in use by another version of libddp; use one libddp for all ranks");
    return false;
}

// The file may have been there already. A process that can read it learns the keys of connections.
void FileLog::require_private() const {
    struct stat info {};
    if (fstat(fd_.get(), &info) != 0) io_error(path_, "opened", errno);
    const std::string fault = private_file_fault(geteuid(), info.st_uid, info.st_mode);
    if (fault.empty()) return;
    fail(DDP_ERROR_PERMISSION_DENIED, "the store file ", path_, " ", fault,
         info.st_uid == geteuid() ? "" : "; name another file");
}

bool FileLog::lock(const Deadline& deadline, const std::atomic<bool>& cancelled) {
    using std::chrono::microseconds;
    // Waiting in the kernel would have no bound: a stopped process may hold the lock for ever.
    for (microseconds pause(50);; pause = std::min(pause * 2, microseconds(2000))) {
        if (lock_byte(fd_.get(), kMutexByte, path_)) return true;
        if (cancelled || deadline.expired()) return false;
        if (interrupt::wanted())
            fail(DDP_ERROR_INTERRUPTED, "a wait for the store file ", path_,
                 ", which another process has locked, was interrupted");
        std::this_thread::sleep_for(pause);
    }
}

void FileLog::unlock() {
    unlock_byte(fd_.get(), kMutexByte);
}

bool FileLog::changed() const {
    Header now = read_header();
    return now.end != seen_.end || now.generation != seen_.generation;
}

bool FileLog::alive(std::uint64_t owner) const {
    if (owner > kLastOwner) return false;
    return owner == owner_ ||
           held_by_others(fd_.get(), kLiveBytes + static_cast<off_t>(owner), 1, path_);
}

void FileLog::end_presence() const {
    unlock_byte(fd_.get(), kLiveBytes + static_cast<off_t>(owner_));
}

bool FileLog::others_alive() const {
    return held_by_others(fd_.get(), kLiveBytes, 0, path_);
}

FileLog::Header FileLog::read_header() const {
    std::string bytes = read_at(fd_.get(), 0, kHeaderSize, path_);
    if (bytes.size() != kHeaderSize)
        fail(DDP_ERROR_IO, "the store file ", path_, " was cut short by somebody else");
    ByteReader in(std::string_view(bytes).substr(kMagic.size()));
    Header header;
    header.start = in.u64();
    header.end = in.u64();
    header.generation = in.u64();
    header.next_owner = in.u64();
    const bool log_is_good =
        header.start >= kFirstRecord && header.start <= header.end && header.end <= kLastByte;
    if (!log_is_good || header.next_owner == 0 || header.next_owner > kLastOwner)
        fail(DDP_ERROR_IO, "the store file ", path_,
             " is damaged: its header has numbers that no participant writes");
    return header;
}

void FileLog::write_header(const Header& header) {
    ByteWriter out;
    out.raw(kMagic);
    out.u64(header.start);
    out.u64(header.end);
    out.u64(header.generation);
    out.u64(header.next_owner);
    write(out.take(), 0);
}

void FileLog::write(std::string_view bytes, std::uint64_t at) {
    const WriteSignalsHeld held;
    while (!bytes.empty()) {
        ssize_t count = pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EFBIG) too_large(path_);
        if (count <= 0) io_error(path_, "written", count < 0 ? errno : EIO);
        at += static_cast<std::uint64_t>(count);
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
}

bool FileLog::replay(StoreState& state) {
    Header now = read_header();
    if (now.generation != seen_.generation) {
        state = StoreState();
        seen_ = now;
        seen_.end = now.start;
    } else if (now.end == seen_.end) {
        return false;
    }
    FrameReader reader;
    constexpr std::uint64_t kChunk = 1 << 20;
    for (std::uint64_t at = seen_.end; at < now.end;) {
        std::string bytes =
            read_at(fd_.get(), at, static_cast<std::size_t>(std::min(kChunk, now.end - at)), path_);
        if (bytes.empty()) break;
        at += bytes.size();
        reader.feed(bytes);
        while (auto frame = reader.next()) {
            const Request request = decode_request(*frame);
            seen_.end += kFrameHeader + frame->payload.size();
            state.apply(frame->id, request);
        }
    }
    if (seen_.end != now.end)
        fail(DDP_ERROR_IO, "the store file ", path_, " was damaged by somebody else");
    return true;
}

void FileLog::append(std::uint64_t owner, const Request& request, const StoreState& state) {
    // Until the header is written the record does not count; should that fail, `state` is ahead of
    // the file and the next replay rebuilds it.
    Header next = read_header();
    seen_.generation = 0;
    std::string record = encode_request(owner, request);
    write(record, next.end);
    next.end += record.size();
    write_header(next);
    seen_ = next;
    if (next.end - next.start > kSmallLog + 4 * static_cast<std::uint64_t>(state.bytes()))
        compact(state);
}

void FileLog::compact(const StoreState& state) {
    Header next = read_header();
    const std::uint64_t old_end = next.end;
    std::uint64_t at = old_end;
    state.snapshot([&](std::uint64_t owner, const Request& request) {
        std::string record = encode_request(owner, request);
        write(record, at);
        at += record.size();
    });
    next.start = old_end;
    next.end = at;
    ++next.generation;
    write_header(next);
    seen_ = next;
    // Where the file system cannot do this, the old bytes stay until the file is deleted.
    fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(kFirstRecord), static_cast<off_t>(old_end - kFirstRecord));
}

void FileLog::remove_file() {
    if (!still_at_path()) return;
    if (read_fence() == 0)
        unlink(path_.c_str());
    else if (ftruncate(fd_.get(), kFenceAt + sizeof(std::uint64_t)) != 0)
        io_error(path_, "written", errno);
}

}  // namespace libddp
