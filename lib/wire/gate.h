// Where strangers knock: a listening socket, and the handshakes of those who have not proved
// anything yet.
//
// A stranger costs one descriptor and one unfinished handshake, for a bounded time. Their number is
// bounded: strangers.h says who makes room for a new one. The listening socket stays open whatever
// they do, also when the process has no descriptor left.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "wire/channel.h"
#include "wire/seen_hellos.h"
#include "wire/strangers.h"

namespace libddp::wire {

// Lines of the log about strangers: few of them, because an attack must not fill the log.
class GateLog {
public:
    // name: begins each line.
    explicit GateLog(std::string name) : name_(std::move(name)) {}
    void report(const std::string& line);

private:
    const std::string name_;
    std::chrono::steady_clock::time_point last_{};
    int left_out_ = 0;
};

class Gate {
public:
    using Clock = std::chrono::steady_clock;
    struct Guest {
        std::string identity;
        std::string address;  // "10.0.0.2:40112", for messages
        std::unique_ptr<Channel> channel;
    };
    using Admit = std::function<void(Guest guest)>;
    // An honest peer proves itself in milliseconds. One that is stopped meanwhile, or cut off,
    // tries again.
    static constexpr auto kHandshakeBound = std::chrono::seconds(10);

    // listener: listening and non-blocking. name: for lines of the log, "store" for example. bound:
    // of a handshake. Throws Error.
    Gate(Descriptor listener, const std::string& name, Handshake::Lookup lookup,
         Protection protection, Admit admit, Clock::duration bound = kHandshakeBound);
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    // Readable when advance() has something to do. (An epoll instance; other loops can watch it.)
    int fd() const { return epoll_.get(); }
    // Accepts, goes on with handshakes, ends those that take too long, and calls admit for those
    // that are done. Never blocks. Call it also kLookMs after the last call while pending() is
    // true.
    void advance();
    bool pending() const { return !strangers_.empty() || paused_; }
    static constexpr std::int64_t kLookMs = 1000;

private:
    struct Stranger {
        std::unique_ptr<Handshake> handshake;
        std::string address;
        Clock::time_point came;
        std::uint32_t events;
    };
    using Position = std::map<std::uint64_t, Stranger>::iterator;

    void accept_some();
    bool accept_one();
    bool turn_one_away();
    void pause(Clock::duration at_least);
    void go_on(Position stranger);
    void is_promising(std::uint64_t id);
    void watch(Position stranger, Handshake::Wants wants);
    void forget(Position stranger);
    void refuse(std::uint64_t id, const std::string& why);
    void refuse_late_ones();

    const Descriptor listener_;
    GateLog log_;
    const Handshake::Lookup lookup_;
    const Protection protection_;
    const Admit admit_;
    const Clock::duration bound_;
    Descriptor epoll_;
    Descriptor reserve_;   // given up for a moment when there is no other
    bool paused_ = false;  // nobody is accepted now
    Clock::time_point paused_until_{};
    std::map<std::uint64_t, Stranger> strangers_;
    Strangers order_;
    SeenHellos seen_;
    // until then, a network has only its share of those that have used the key
    Clock::time_point crowded_until_{};
    std::uint64_t next_id_;
};

// A non-blocking socket that listens on a numeric address. port: 0 takes a free one. Throws Error:
// INVALID_ARGUMENT (not an address of this machine), ALREADY_EXISTS (port taken),
// PERMISSION_DENIED, LIMIT, IO.
Descriptor listen_on(const std::string& address, int port);

}  // namespace libddp::wire
