// Where the other ranks connect to this process: one socket and one thread for all its groups.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "util/descriptors.h"
#include "util/mutex.h"
#include "wire/channel.h"
#include "wire/gate.h"

namespace libddp::tcp {

// A mesh that is being joined and expects connections.
class Expecting {
public:
    // Both on the listener's thread, and under a lock that Listener::remove takes, too.
    virtual std::optional<wire::Key> key_of(std::string_view identity) = 0;
    virtual void admit(wire::Gate::Guest guest) = 0;

protected:
    ~Expecting() = default;
};

class Listener {
public:
    // This process's listener at a numeric address. It lives as long as somebody holds it. Throws
    // Error.
    static std::shared_ptr<Listener> at(const std::string& address, wire::Protection protection);
    Listener(const std::string& address, wire::Protection protection);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    int port() const { return port_; }

    // Connections whose identity begins with `prefix` belong to `expecting`, until remove().
    void add(const std::string& prefix, Expecting* expecting);
    void remove(const std::string& prefix);

    // Closes a connection once the peer has closed it, or soon: closing at once would destroy what
    // is on the way to the peer, where this end has not read all that came.
    void close_later(std::unique_ptr<wire::Channel> channel);

private:
    struct Closing {
        std::unique_ptr<wire::Channel> channel;
        wire::Gate::Clock::time_point until;
    };

    Expecting* find(std::string_view identity) DDP_REQUIRES(mutex_);
    void watch();
    void drain(Closing& closing);
    void wake() const;

    Descriptor wake_;
    Mutex mutex_;
    std::map<std::string, Expecting*, std::less<>> expecting_ DDP_GUARDED_BY(mutex_);
    std::list<Closing> closing_ DDP_GUARDED_BY(mutex_);
    bool stop_ DDP_GUARDED_BY(mutex_) = false;
    int port_ = 0;
    std::unique_ptr<wire::Gate> gate_;
    std::thread thread_;
};

}  // namespace libddp::tcp
