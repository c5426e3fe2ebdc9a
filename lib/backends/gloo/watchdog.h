// Ends an operation of Gloo that would outlive its deadline.
#pragma once

#include <optional>
#include <thread>

#include "backends/gloo/mesh.h"
#include "util/deadline.h"
#include "util/mutex.h"

namespace libddp::gloo_tcp {

// Gloo's ring applies its timeout to each of many waits, its bcube to none. The watchdog poisons
// the mesh when an armed deadline passes, and the operation throws.
class Watchdog {
public:
    explicit Watchdog(Mesh& mesh);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    void arm(const Deadline& deadline);
    // True if the deadline passed first: the mesh is then poisoned or about to be.
    bool disarm();

private:
    void loop();

    Mesh& mesh_;
    Mutex mutex_;
    Condition changed_;
    std::optional<Deadline> deadline_ DDP_GUARDED_BY(mutex_);
    bool fired_ DDP_GUARDED_BY(mutex_) = false;
    bool stop_ DDP_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace libddp::gloo_tcp
