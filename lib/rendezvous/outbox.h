// Messages on their way into a channel.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "wire/channel.h"

namespace libddp {

// A part of messages that may be in several outboxes. Its maker counts its bytes.
using SharedBytes = std::shared_ptr<const std::string>;

// Not thread-safe.
class Outbox {
public:
    // total: what several outboxes hold of their own, SharedBytes not among it.
    explicit Outbox(std::size_t* total = nullptr) : total_(total) {}
    ~Outbox() { clear(); }
    Outbox(const Outbox&) = delete;
    Outbox& operator=(const Outbox&) = delete;

    void add(std::string bytes);
    void add(SharedBytes bytes);
    // Gives the channel what it takes, a few MiB at a time. True: nothing is left here or in the
    // channel. Throws as Channel::send.
    bool send(wire::Channel& channel);
    // The bytes that it holds, SharedBytes included.
    std::size_t bytes() const { return bytes_; }
    void clear();

private:
    struct Piece {
        std::string own;
        SharedBytes shared;
        const std::string& bytes() const { return shared ? *shared : own; }
    };
    void push(Piece piece);
    void remove(std::size_t bytes);

    std::deque<Piece> pieces_;
    std::size_t sent_ = 0;  // of the first piece
    std::size_t bytes_ = 0;
    std::size_t* const total_;
};

}  // namespace libddp
