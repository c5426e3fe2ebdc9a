#include "backends/tcp/exchange.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/parts.h"
#include "util/error.h"

namespace libddp::tcp {
namespace {

// A rank that knows of a difference still tells the others, but not for longer than this.
constexpr std::int64_t kTellMs = 1000;

}  // namespace

bool Exchange::Opening::operator==(const Opening& other) const {
    return kind == other.kind && dtype == other.dtype && op == other.op && root == other.root &&
           count == other.count && parts == other.parts && signature_size == other.signature_size &&
           std::memcmp(signature, other.signature, signature_size) == 0;
}

void Exchange::begin(const ddp_collective& c, const Deadline& deadline) {
    if (c.signature_size > kMaxSignature)
        fail(DDP_ERROR_INTERNAL, "a signature of ", c.signature_size, " bytes is too long");
    c_ = &c;
    deadline_ = deadline;
    mesh_.begin_operation();
    own_ = {c.kind,           c.dtype, c.op, c.root, c.count, hash_of_parts(c.counts, mesh_.size()),
            c.signature_size, {},      {}};
    if (c.signature_size > 0) std::memcpy(own_.signature, c.signature, c.signature_size);
    if (c.carried) std::copy_n(c.carried, std::size(own_.carried), own_.carried);
    std::copy(std::begin(own_.carried), std::end(own_.carried), carried_);
    difference_ = Difference{};
    incoming_.clear();
    if (!mesh_.full()) return run_rounds();
    incoming_.resize(static_cast<std::size_t>(mesh_.size()) - 1);
    for (int distance = 1; distance < mesh_.size(); ++distance) {
        Incoming& incoming = incoming_[static_cast<std::size_t>(distance) - 1];
        incoming.peer = mesh_.before(distance);
        incoming.missing = 1;
        mesh_.expect(incoming.peer, MessageType::kOpening, &incoming.opening, sizeof(Opening),
                     &incoming.missing);
        mesh_.send(mesh_.after(distance), MessageType::kOpening, &own_, sizeof own_);
    }
}

// Runs to its end: in the last round every rank hears of a difference.
void Exchange::run_rounds() {
    outgoing_.clear();
    for (int distance = 1; distance < mesh_.size(); distance *= 2) {
        const int from = mesh_.before(distance);
        Frame frame;
        int missing = 1;
        Frame& sent = outgoing_.emplace_back(Frame{own_, difference_});
        std::copy(std::begin(carried_), std::end(carried_), sent.own.carried);
        mesh_.send(mesh_.after(distance), MessageType::kOpening, &sent, sizeof sent);
        mesh_.expect(from, MessageType::kOpening, &frame, sizeof frame, &missing);
        mesh_.wait(deadline_, [&] { return missing == 0; });
        note(from, frame.own);
        gather_carried(frame.own);
        if (frame.difference.rank >= 0) note(frame.difference.rank, frame.difference.opening);
    }
    mesh_.wait_sent(deadline_);
}

void Exchange::note(int rank, const Opening& opening) {
    if (difference_.rank < 0 && !(opening == own_)) difference_ = {opening, rank, 0};
}

void Exchange::gather_carried(const Opening& opening) {
    for (std::size_t i = 0; i < std::size(carried_); ++i) carried_[i] |= opening.carried[i];
}

bool Exchange::all_here() {
    bool all = true;
    for (const Incoming& incoming : incoming_) {
        if (incoming.missing > 0)
            all = false;
        else
            note(incoming.peer, incoming.opening);
    }
    return all || difference_.rank >= 0;
}

void Exchange::finish() {
    mesh_.wait(deadline_, [this] { return all_here(); });
    if (difference_.rank >= 0) disagree();
    for (const Incoming& incoming : incoming_) gather_carried(incoming.opening);
    if (c_->carried) std::copy(std::begin(carried_), std::end(carried_), c_->carried);
}

void Exchange::disagree() {
    try {
        mesh_.wait_sent(Deadline::after_ms(std::min(kTellMs, deadline_.remaining_ms())));
    } catch (const Error&) {
        // The difference is the error to report. A rank that has left has seen it, or will hear of
        // it from the others.
    }
    if (c_->theirs && c_->signature_size > 0)
        std::memcpy(c_->theirs, difference_.opening.signature, c_->signature_size);
    throw Error(ErrorInfo{
        DDP_ERROR_MISMATCH,
        str("rank ", difference_.rank, " is about to do something else than rank ", mesh_.rank()),
        difference_.rank});
}

}  // namespace libddp::tcp
