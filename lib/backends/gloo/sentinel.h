// Notices that a peer went away, whatever this rank is waiting for.
#pragma once

#include <atomic>
#include <thread>

#include "backends/gloo/mesh.h"
#include "util/mutex.h"

namespace libddp::gloo_tcp {

// Gloo wakes only the operations on the connection that broke. A rank that waits for a peer that is
// alive but stuck behind the dead one would sleep until its timeout. So the sentinel keeps a
// receive posted on every connection, and poisons the mesh when one of them breaks; that breaks
// this rank's other connections, and so on through the world. A rank that leaves in good order says
// so first, because its peers may still be finishing what it has finished.
class Sentinel {
public:
    explicit Sentinel(Mesh& mesh);
    ~Sentinel();
    Sentinel(const Sentinel&) = delete;
    Sentinel& operator=(const Sentinel&) = delete;

    // Tells the peers that this rank leaves and that nothing is wrong. Takes a few milliseconds at
    // most.
    void say_goodbye();

    // A rank that left in good order, or -1 if none did or some connection broke without a goodbye.
    int departed() const { return broken_ ? -1 : departed_.load(); }

private:
    void watch();
    void wait_for_goodbyes();

    Mesh& mesh_;
    const std::uint64_t tag_;
    char inbox_ = 0;
    BufferPtr goodbyes_;
    std::atomic<int> departed_{-1};
    std::atomic<bool> broken_{false};
    Mutex mutex_;
    Condition stopping_;
    bool stop_ DDP_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace libddp::gloo_tcp
