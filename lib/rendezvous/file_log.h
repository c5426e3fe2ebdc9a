// The file behind a file store: an append-only log of requests that every participant replays, and
// byte-range locks that say who is alive.
//
// Layout: a header (magic, where the log starts and ends, generation, next owner number) and, from
// byte 4096, the records. Behind the header stands the fence (Store::raise_fence), which stays when
// a file is started afresh. The header is written last and in one small write, so that a
// participant killed at any moment leaves either the old log or the new one. When most of the log
// is history, its owner-of-the-moment writes a snapshot behind it, lets the header point there (a
// new generation) and gives the old bytes back to the file system.
//
// Locks are open-file-description locks on bytes far beyond the contents. They belong to one open
// file, not to the process, so two stores in one process exclude each other too, and the kernel
// drops them when the process dies however it dies. One byte is the mutex of the log; each
// participant also holds the byte of its own number for as long as it lives.
//
// Limits: the file system must support these locks between the participants (local ones do; NFS
// only version 4 with a working lock service, and there a death is noticed when the server's lease
// ends). A child forked without exec shares its parent's locks, so the parent counts as alive until
// the child has gone as well. Every participant holds all contents in memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "rendezvous/protocol.h"
#include "rendezvous/store_state.h"
#include "util/deadline.h"
#include "util/descriptors.h"

namespace libddp {

class FileLog {
public:
    // Opens or creates the file and joins as a participant. A file that no living participant holds
    // is started afresh. Throws Error: INVALID_ARGUMENT (not a store file), PERMISSION_DENIED (also
    // for a file of another user, or one that others may open), UNSUPPORTED (no such locks), LIMIT
    // (open files), TIMEOUT, IO.
    FileLog(const std::string& path, const Deadline& deadline);
    // Leaves: closes the file and with it drops the locks.
    ~FileLog();
    FileLog(const FileLog&) = delete;
    FileLog& operator=(const FileLog&) = delete;

    std::uint64_t owner() const { return owner_; }

    // False: the deadline passed or `cancelled` became true.
    bool lock(const Deadline& deadline, const std::atomic<bool>& cancelled);
    void unlock();

    // Without the lock: a hint that there is something to replay.
    bool changed() const;
    bool alive(std::uint64_t owner) const;

    // With the lock held: brings `state` up to date. True: it has changed.
    bool replay(StoreState& state);
    // With the lock held, directly after replay: records what has just been applied to `state`.
    void append(std::uint64_t owner, const Request& request, const StoreState& state);
    // With the lock held: from now on others see this participant as gone.
    void end_presence() const;
    bool others_alive() const;
    // With the lock held: Store::raise_fence.
    std::int64_t raise_fence(std::int64_t at_least);
    // With the lock held, and nobody else alive: deletes the file. One with a fence stays, without
    // its contents.
    void remove_file();
    void leave();

private:
    struct Header {
        std::uint64_t start = 0;
        std::uint64_t end = 0;
        std::uint64_t generation = 0;
        std::uint64_t next_owner = 1;
    };

    bool join(const Deadline& deadline);
    void open_file();
    bool still_at_path() const;
    bool fresh_or_stale();
    void require_private() const;
    Header read_header() const;
    void write_header(const Header& header);
    void write(std::string_view bytes, std::uint64_t at);
    void compact(const StoreState& state);
    std::int64_t read_fence() const;
    void write_fence(std::int64_t fence);
    void begin_afresh(Header& header);

    std::string path_;
    Descriptor fd_;
    std::uint64_t owner_ = 0;
    Header seen_;  // what `state` of the last replay stands for; generation 0: nothing yet
};

}  // namespace libddp
