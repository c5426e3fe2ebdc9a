#include "backends/gloo/exchange.h"

#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "util/error.h"
#include "util/text.h"

namespace libddp::gloo_tcp {
namespace {

constexpr int kLargestFlatWorld = 16;

}  // namespace

bool Exchange::Signature::operator==(const Signature& other) const {
    return size == other.size && std::memcmp(bytes, other.bytes, size) == 0;
}

Exchange::Exchange(Mesh& mesh) : mesh_(mesh) {
    const int size = mesh.size(), rank = mesh.rank();
    if (size <= kLargestFlatWorld) {
        rounds_.emplace_back(size - 1);
        for (int distance = 1; distance < size; ++distance) {
            const int peer = (rank + distance) % size;
            rounds_[0][distance - 1].to = rounds_[0][distance - 1].from = peer;
        }
    } else {
        for (int distance = 1; distance < size; distance *= 2) {
            rounds_.emplace_back(1);
            rounds_.back()[0].to = (rank + distance) % size;
            rounds_.back()[0].from = (rank + size - distance) % size;
        }
    }
    outgoing_.resize(rounds_.size());
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
        const std::uint64_t tag = mesh_.new_tag();
        send_.push_back(mesh_.buffer(&outgoing_[i], sizeof(Frame)));
        for (Partner& partner : rounds_[i]) {
            partner.tag = tag;
            partner.receive = mesh_.buffer(&partner.incoming, sizeof(Frame));
            post(partner);
        }
    }
}

Exchange::~Exchange() = default;

// Receives are posted one exchange ahead: then a sender need not wait to hear that there is room
// for its message. A peer that left after the last collective is missed only by the next exchange,
// if there is one.
void Exchange::post(Partner& partner) {
    try {
        partner.receive->recv(partner.from, partner.tag, 0, sizeof(Frame));
        partner.posted = true;
    } catch (const std::exception&) {
        partner.posted = false;
    }
}

std::optional<Exchange::Difference> Exchange::compare(const void* bytes, std::size_t size,
                                                      const Deadline& deadline) {
    state_ = Frame{};
    state_.own.size = static_cast<std::uint32_t>(size);
    state_.culprit = -1;
    std::memcpy(state_.own.bytes, bytes, size);
    // A rank that knows of a difference goes on to the last round, because others learn it from
    // this rank.
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
        outgoing_[i] = state_;
        run_round(rounds_[i], deadline);
    }
    if (state_.culprit >= 0) {
        Difference difference{state_.culprit, {}};
        std::memcpy(difference.bytes.data(), state_.culprits.bytes, kMaxBytes);
        return difference;
    }
    for (std::size_t i = 0; i < rounds_.size(); ++i)
        for (std::size_t n = rounds_[i].size(); n > 0; --n) wait_send(*send_[i], deadline);
    for (auto& round : rounds_)
        for (Partner& partner : round) post(partner);
    return std::nullopt;
}

void Exchange::run_round(std::vector<Partner>& round, const Deadline& deadline) {
    Buffer& send = *send_[static_cast<std::size_t>(&round - rounds_.data())];
    // A peer that disagreed may have left already. The message that the others (and it) sent before
    // is here or on its way, and says more than the broken connection does.
    std::exception_ptr broken;
    for (Partner& partner : round) {
        try {
            send.send(partner.to, partner.tag, 0, sizeof(Frame));
        } catch (const std::exception&) {
            broken = std::current_exception();
        }
    }
    std::vector<int> silent;
    for (std::size_t i = 0; i < round.size(); ++i) {
        try {
            if (!round[i].posted) throw std::runtime_error("a connection broke");
            wait_recv(*round[i].receive, deadline);
            absorb(round[i]);
        } catch (const std::exception&) {
            silent.push_back(round[i].from);
            if (deadline.expired()) report_missing(round, i + 1, std::move(silent));
            broken = std::current_exception();
        }
    }
    if (broken && state_.culprit < 0) std::rethrow_exception(broken);
}

void Exchange::absorb(const Partner& partner) {
    if (state_.culprit >= 0) return;
    if (!(partner.incoming.own == state_.own)) {
        state_.culprit = partner.from;
        state_.culprits = partner.incoming.own;
    } else if (partner.incoming.culprit >= 0) {
        state_.culprit = partner.incoming.culprit;
        state_.culprits = partner.incoming.culprits;
    }
}

// The first wait that timed out has broken all connections, but what came before then is still to
// be had. Connections that broke before, to ranks that had sent nothing, may be the work of a rank
// whose own wait timed out a moment earlier.
void Exchange::report_missing(std::vector<Partner>& round, std::size_t rest,
                              std::vector<int> silent) {
    for (std::size_t i = rest; i < round.size(); ++i) {
        try {
            round[i].receive->waitRecv(std::chrono::milliseconds(1));
        } catch (const std::exception&) {
            silent.push_back(round[i].from);
        }
    }
    TextOut missing;
    for (const int rank : silent) missing << (missing.tellp() > 0 ? ", " : "") << rank;
    // In a dissemination round the sender may itself be waiting for someone else.
    const bool certain = rounds_.size() == 1;
    throw Error(ErrorInfo{DDP_ERROR_TIMEOUT,
                          str("no sign of rank ", missing.str(), " before the timeout"),
                          certain ? silent.front() : -1});
}

}  // namespace libddp::gloo_tcp
