#include "backends/gloo/sentinel.h"

#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <exception>
#include <stdexcept>

#include "util/quiet_thread.h"

namespace libddp::gloo_tcp {
namespace {

// A wait that times out breaks the mesh, so this one must outlast any job. The destructor ends it.
constexpr std::chrono::hours kTenYears{24 * 365 * 10};
constexpr std::chrono::milliseconds kWakeInterval{10};
// A wait that times out closes the connection, and with it what a slower peer is still to read: on
// a loaded machine this rank may not run for a while. It is normally over in microseconds.
constexpr std::int64_t kGoodbyeMs = 800;

}  // namespace

Sentinel::Sentinel(Mesh& mesh)
    : mesh_(mesh), tag_(mesh.new_tag()), goodbyes_(mesh.buffer(&inbox_, 1)) {
    for (int peer = 0; peer < mesh.size(); ++peer)
        if (peer != mesh.rank()) goodbyes_->recv(peer, tag_, 0, 1);
    thread_ =
        quiet_thread([this] { persist("the sentinel of backend gloo", [this] { watch(); }); });
}

Sentinel::~Sentinel() {
    {
        const Lock lock(mutex_);
        stop_ = true;
    }
    stopping_.notify_one();
    mesh_.poison();
    thread_.join();
}

void Sentinel::watch() {
    try {
        wait_for_goodbyes();
        return;
    } catch (const std::exception&) {
        broken_ = true;
        mesh_.poison();
    }
    // Gloo's own collectives go on after a wait that was ended, and may then begin another that
    // nothing ends.
    Lock lock(mutex_);
    while (!stop_) {
        stopping_.wait_for(lock, kWakeInterval);
        mesh_.end_waits();
    }
}

void Sentinel::wait_for_goodbyes() {
    for (int peers = mesh_.size() - 1; peers > 0; --peers) {
        int rank = -1;
        if (!goodbyes_->waitRecv(&rank, kTenYears))
            throw std::runtime_error("the mesh was poisoned");
        departed_ = rank;
    }
}

void Sentinel::say_goodbye() {
    char goodbye = 1;
    const auto message = mesh_.buffer(&goodbye, 1);
    int sent = 0;
    for (int peer = 0; peer < mesh_.size(); ++peer) {
        if (peer == mesh_.rank()) continue;
        try {
            message->send(peer, tag_, 0, 1);
            ++sent;
        } catch (const std::exception&) {
            // It has left before.
        }
    }
    try {
        const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
        for (; sent > 0; --sent) wait_send(*message, deadline);
    } catch (const std::exception&) {
        // A peer that takes nothing any more learns of it from the connection.
    }
}

}  // namespace libddp::gloo_tcp
