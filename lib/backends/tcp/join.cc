#include "backends/tcp/join.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string>

#include "backends/common/keys.h"
#include "backends/tcp/directory.h"
#include "util/error.h"
#include "util/mutex.h"
#include "util/random.h"
#include "util/text.h"
#include "wire/dial.h"
#include "wire/sockets.h"

namespace libddp::tcp {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

// How often the program and the group are asked whether to go on.
constexpr milliseconds kAskProgram{50}, kAskGroup{200};

std::string identity_prefix(const std::string& group, int to) {
    return str(group, ":", to, ":");
}

std::string identity_of(const std::string& group, int to, int from, int lane) {
    return str(identity_prefix(group, to), from, ":", lane);
}

// The name and secret that rank 0 makes up. Only ranks that may read the store know them.
struct GroupName {
    std::string name;  // connections say it in the clear
    std::string secret;

    // A key for each connection: what proves one proves no other. The store hands out the secret
    // only to clients that know the job secret, and so it proves that, too.
    wire::Key key_of(std::string_view identity) const {
        return wire::derive_key(secret, str("libddp backend tcp ", identity));
    }
};

GroupName agree_on_name(const ddp_backend_host& host, const Deadline& deadline) {
    const backend::Keys keys(host, "tcp/");
    GroupName group;
    if (host.rank == 0) {
        group = {random_text(32), random_text(32)};
        keys.set("group", group.name + " " + group.secret);
    } else {
        TextIn(keys.get("group", deadline)) >> group.name >> group.secret;
    }
    return group;
}

// Where each rank listens. Rank 0 collects and tells, so that the store answers a few questions a
// rank and not one for each pair.
std::vector<Listening> exchange_addresses(const ddp_backend_host& host, const Listening& mine,
                                          const Deadline& deadline) {
    const backend::Keys keys(host, "tcp/");
    std::string all = write_listening(mine);
    if (host.rank == 0) {
        for (int rank = 1; rank < host.world_size; ++rank) {
            const std::string line = keys.get(str("listening/", rank), deadline);
            require_same_settings(mine, read_listening(line, rank), rank);
            all += "\n" + line;
        }
        keys.set("all", all);
    } else {
        keys.set(str("listening/", host.rank), all);
        all = keys.get("all", deadline);
    }
    return read_directory(all, host.world_size);
}

// The listener sends connections here while this object lives.
class Registration {
public:
    Registration(Listener& listener, std::string prefix, Expecting* expecting)
        : listener_(listener), prefix_(std::move(prefix)) {
        listener_.add(prefix_, expecting);
    }
    ~Registration() { listener_.remove(prefix_); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

private:
    Listener& listener_;
    const std::string prefix_;
};

// A connection that this rank makes: attempts, one after another.
class Connector {
public:
    Connector(int to, int number, std::string identity, wire::Key key, SocketAddress address,
              wire::Protection protection)
        : peer(to),
          lane(number),
          identity_(std::move(identity)),
          key_(key),
          address_(address),
          protection_(protection) {}

    const int peer, lane;
    std::unique_ptr<wire::Channel> channel;  // once it is done
    const std::string& last_reason() const { return last_reason_; }

    // Goes on as far as it can.
    void advance() {
        try {
            if (!attempt_) {
                if (Clock::now() < next_look_) return;
                attempt_ = std::make_unique<wire::Dial>(address_, identity_, key_, protection_);
                next_look_ = Clock::now() + wire::Dial::kLongest;
            }
            channel = attempt_->advance();
            if (channel)
                attempt_.reset();  // and with it the secrets of the handshake
            else if (Clock::now() >= next_look_)
                try_again(attempt_->accepted() ? "it does not answer" : "no answer");
        } catch (const Error& error) {
            if (error.info().code == DDP_ERROR_LIMIT ||
                error.info().code == DDP_ERROR_OUT_OF_MEMORY)
                throw;
            try_again(error.what());
        }
    }

    // The event to wait for; fd -1: nothing.
    pollfd waits_for() const {
        return attempt_ && !channel ? attempt_->waits_for() : pollfd{-1, 0, 0};
    }
    // When to look although nothing happened: the attempt takes too long, or the next one begins.
    Clock::time_point next_look() const { return next_look_; }

private:
    void try_again(const std::string& why) {
        last_reason_ = why;
        attempt_.reset();
        next_look_ = Clock::now() + pauses_.next();
    }

    const std::string identity_;
    const wire::Key key_;
    const SocketAddress address_;
    const wire::Protection protection_;
    std::unique_ptr<wire::Dial> attempt_;  // null: a pause
    Clock::time_point next_look_{};
    wire::Pauses pauses_;
    std::string last_reason_ = "it was not tried";
};

// The joining of one group. The higher one of two ranks connects.
class Joining final : public Expecting {
public:
    Joining(const ddp_backend_host& host, const Settings& settings, const Deadline& deadline,
            Connections& connections)
        : host_(host),
          settings_(settings),
          deadline_(deadline),
          connections_(connections),
          wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (!wake_) cannot_start("backend tcp", errno);
        const std::string address = backend::choose_address(host, settings.network, deadline);
        connections.listener = Listener::at(address, settings.protection);
        group_ = agree_on_name(host, deadline);
        const std::vector<int> peers = peers_of(host.rank, host.world_size, settings.algorithm);
        connections_.channels.resize(static_cast<std::size_t>(host.world_size));
        for (const int peer : peers) {
            connections_.channels[static_cast<std::size_t>(peer)].resize(
                static_cast<std::size_t>(settings.lanes));
            for (int lane = 0; lane < settings.lanes && peer > host.rank; ++lane)
                awaited_.insert({peer, lane});
        }
        // Before the others hear where to connect.
        registration_.emplace(*connections.listener, identity_prefix(group_.name, host.rank), this);
        directory_ = exchange_addresses(
            host,
            {name_of(settings.protection), settings.lanes, address, connections.listener->port()},
            deadline);
        for (const int peer : peers)
            for (int lane = 0; lane < settings.lanes && peer < host.rank; ++lane)
                connectors_.push_back(make_connector(peer, lane));
    }

    void run() {
        auto next_question = Clock::now() + kAskGroup;
        while (!complete()) {
            wait();
            for (Connector& connector : connectors_) {
                if (connector.channel || taken(connector)) continue;
                connector.advance();
                if (connector.channel) take(connector);
            }
            if (complete()) return;
            if (deadline_.expired()) report_missing();
            if (host_.interrupted && host_.interrupted(host_.handle) != 0)
                fail(DDP_ERROR_INTERRUPTED, "connecting with the other ranks was interrupted");
            if (Clock::now() < next_question) continue;
            backend::Keys(host_).check_group();
            next_question = Clock::now() + kAskGroup;
        }
    }

    std::optional<wire::Key> key_of(std::string_view identity) override {
        for (const auto& [peer, lane] : awaited_)
            if (identity == identity_of(group_.name, host_.rank, peer, lane))
                return group_.key_of(identity);
        return std::nullopt;
    }

    // A peer that comes twice did not hear the end of its first handshake.
    void admit(wire::Gate::Guest guest) override {
        const Lock lock(mutex_);
        for (const auto& [peer, lane] : awaited_) {
            if (guest.identity != identity_of(group_.name, host_.rank, peer, lane)) continue;
            connections_.channels[static_cast<std::size_t>(peer)][static_cast<std::size_t>(lane)] =
                std::move(guest.channel);
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
    }

private:
    Connector make_connector(int peer, int lane) {
        std::string identity = identity_of(group_.name, peer, host_.rank, lane);
        const wire::Key key = group_.key_of(identity);
        const Listening& there = directory_[static_cast<std::size_t>(peer)];
        const SocketAddress address = resolve(there.address, there.port, deadline_).front();
        return Connector(peer, lane, std::move(identity), key, address, settings_.protection);
    }

    std::unique_ptr<wire::Channel>& place_of(int peer, int lane) {
        return connections_
            .channels[static_cast<std::size_t>(peer)][static_cast<std::size_t>(lane)];
    }
    bool taken(const Connector& connector) {
        return place_of(connector.peer, connector.lane) != nullptr;
    }
    void take(Connector& connector) {
        place_of(connector.peer, connector.lane) = std::move(connector.channel);
    }

    bool complete() {
        const Lock lock(mutex_);
        for (const auto& channels : connections_.channels)
            for (const auto& channel : channels)
                if (!channel) return false;
        return true;
    }

    void wait() {
        std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
        auto until = std::min(deadline_.at(), Clock::now() + kAskProgram);
        for (const Connector& connector : connectors_) {
            if (taken(connector)) continue;
            if (const pollfd entry = connector.waits_for(); entry.fd >= 0) entries.push_back(entry);
            until = std::min(until, connector.next_look());
        }
        const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
        poll(entries.data(), entries.size(), static_cast<int>(std::max<std::int64_t>(0, left)));
        std::uint64_t count;
        [[maybe_unused]] const auto ignored = read(wake_.get(), &count, sizeof count);
    }

    [[noreturn]] void report_missing() {
        for (const Connector& connector : connectors_) {
            if (taken(connector)) continue;
            const Listening& there = directory_[static_cast<std::size_t>(connector.peer)];
            throw Error(ErrorInfo{
                DDP_ERROR_UNAVAILABLE,
                str("rank ", host_.rank, " could not connect with rank ", connector.peer, " (",
                    there.address, " port ", there.port, "): ", connector.last_reason(),
                    "; choose another network with the option iface=NAME or host=ADDRESS, or the "
                    "variable DDP_IFACE"),
                connector.peer});
        }
        std::string missing;
        int first = -1;
        const Lock lock(mutex_);
        for (const auto& [peer, lane] : awaited_) {
            if (lane != 0 || place_of(peer, lane)) continue;
            missing += str(missing.empty() ? "" : ", ", peer);
            if (first < 0) first = peer;
        }
        throw Error(ErrorInfo{DDP_ERROR_TIMEOUT,
                              str("rank ", missing, " did not connect with rank ", host_.rank, " (",
                                  directory_[static_cast<std::size_t>(host_.rank)].address,
                                  " port ", connections_.listener->port(), ") in time"),
                              first});
    }

    const ddp_backend_host& host_;
    const Settings& settings_;
    const Deadline& deadline_;
    Connections& connections_;
    Descriptor wake_;
    GroupName group_;
    std::vector<Listening> directory_;  // by rank
    std::vector<Connector> connectors_;
    std::set<std::pair<int, int>> awaited_;  // peer and lane of what others make
    // channels of awaited_, which the listener's thread brings
    Mutex mutex_;
    std::optional<Registration> registration_;  // ends first
};

}  // namespace

std::vector<int> peers_of(int rank, int world, Algorithm algorithm) {
    std::set<int> peers;
    for (int distance = 1; distance < world;
         distance = algorithm == Algorithm::kDirect ? distance + 1 : 2 * distance) {
        peers.insert((rank + distance) % world);
        peers.insert((rank + world - distance) % world);
    }
    return {peers.begin(), peers.end()};
}

Connections join(const ddp_backend_host& host, const Settings& settings, const Deadline& deadline) {
    const auto peers = peers_of(host.rank, host.world_size, settings.algorithm).size();
    // Descriptors of the listener. Each connection takes one more.
    constexpr std::size_t kListener = 6;
    require_descriptors(peers * static_cast<std::size_t>(settings.lanes) + kListener,
                        "backend tcp");
    Connections connections;
    Joining(host, settings, deadline, connections).run();
    return connections;
}

}  // namespace libddp::tcp
