// This rank's lanes to the others, and the waiting on them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backends/common/failure.h"
#include "backends/tcp/delivery.h"
#include "backends/tcp/join.h"
#include "backends/tcp/lane.h"
#include "backends/tcp/settings.h"
#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp::tcp {

// The thread that runs an operation moves the bytes itself: nothing is handed to another thread.
// shut_down() may come from any thread, everything else from one at a time.
class Mesh {
public:
    // Connects; throws Error. failure: what ends the waits of this rank. host and failure must
    // outlive the mesh.
    Mesh(const ddp_backend_host& host, const Settings& settings, const backend::Failure& failure);
    ~Mesh();
    Mesh(const Mesh&) = delete;
    Mesh& operator=(const Mesh&) = delete;

    int rank() const { return host_.rank; }
    int size() const { return host_.world_size; }
    // Whether every rank is connected with every other.
    bool full() const { return full_; }
    std::size_t lanes() const { return static_cast<std::size_t>(settings_.lanes); }

    // Each rank goes round the others beginning with its neighbour, so that they do not all send to
    // the same one first.
    int after(int distance) const { return (rank() + distance) % size(); }
    int before(int distance) const { return (rank() + size() - distance) % size(); }

    // Messages of one operation. Every rank numbers operations alike.
    void begin_operation() { ++operation_; }
    void send(int peer, MessageType type, const void* data, std::size_t bytes,
              std::size_t lane = 0) {
        of(peer, lane).send(type, operation_, data, bytes);
    }
    void expect(int peer, MessageType type, void* into, std::size_t bytes, int* missing,
                std::size_t lane = 0) {
        of(peer, lane).expect(type, operation_, into, bytes, missing);
    }

    // Moves what can be moved until done(). Throws Error: TIMEOUT, the failure, INTERRUPTED, or
    // what a lane throws.
    template <class Done>
    void wait(const Deadline& deadline, Done done) {
        Patience patience(*this, deadline);
        while (!done()) patience.after(move_all());
    }
    // Until all that was queued has left. Its memory is free again.
    void wait_sent(const Deadline& deadline) {
        wait(deadline, [this] { return all_sent(); });
    }

    // After an operation: looks how connections fare, if it is time for that.
    void look_at_delivery() {
        if (delivery_) delivery_->look();
    }

    // The operation under way has failed. Its memory is free again, whatever else comes.
    void forget();
    // Wakes a wait, and tells all peers.
    void shut_down();
    // Best effort: this rank leaves on purpose.
    void say_goodbye();
    // Leaves what was sent to the kernel, however long peers take to read it.
    void close_later();

private:
    // How a wait sleeps.
    class Patience {
    public:
        Patience(Mesh& mesh, const Deadline& deadline) : mesh_(mesh), deadline_(deadline) {}
        void after(bool moved);

    private:
        void sleep();
        void check();

        Mesh& mesh_;
        const Deadline& deadline_;
        Deadline::Clock::time_point idle_since_{};
        unsigned moves_ = 0;
    };

    Lane& of(int peer, std::size_t lane) { return *by_peer_[static_cast<std::size_t>(peer)][lane]; }
    bool move_all();
    bool all_sent() const;
    // The ranks with a lane of which this is true.
    std::vector<int> peers(bool (Lane::*busy)() const) const;
    // Names the ranks from which something is still to come, or else those that have not taken what
    // was sent.
    ErrorInfo timed_out() const;

    const ddp_backend_host& host_;
    const Settings& settings_;
    const backend::Failure& failure_;
    bool full_ = false;
    std::uint64_t operation_ = 0;
    std::shared_ptr<Listener> listener_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::vector<std::vector<Lane*>> by_peer_;
    std::optional<Delivery> delivery_;  // empty: nothing is recorded
};

}  // namespace libddp::tcp
