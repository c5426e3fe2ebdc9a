#include "rendezvous/outbox.h"

#include <sys/uio.h>

namespace libddp {
namespace {

constexpr int kPieces = 64;  // of one call of the channel
// The rest goes when the socket is writable again, so that one reader does not keep a thread from
// the others.
constexpr std::size_t kAtOnce = std::size_t{4} << 20;

}  // namespace

void Outbox::push(Piece piece) {
    if (piece.bytes().empty()) return;
    bytes_ += piece.bytes().size();
    if (total_ != nullptr) *total_ += piece.own.size();
    pieces_.push_back(std::move(piece));
}

void Outbox::add(std::string bytes) {
    push({std::move(bytes), nullptr});
}

void Outbox::add(SharedBytes bytes) {
    push({std::string(), std::move(bytes)});
}

bool Outbox::send(wire::Channel& channel) {
    for (std::size_t sent = 0; !pieces_.empty();) {
        iovec parts[kPieces];
        int count = 0;
        std::size_t skipped = sent_;
        for (auto piece = pieces_.begin(); piece != pieces_.end() && count < kPieces; ++piece) {
            const std::string& bytes = piece->bytes();
            parts[count++] = {const_cast<char*>(bytes.data()) + skipped, bytes.size() - skipped};
            skipped = 0;
        }
        const std::size_t taken = channel.send(parts, count);
        if (taken == 0) return false;
        remove(taken);
        if ((sent += taken) >= kAtOnce && !pieces_.empty()) return false;
    }
    return channel.flush();
}

void Outbox::remove(std::size_t bytes) {
    bytes_ -= bytes;
    while (bytes > 0) {
        Piece& first = pieces_.front();
        const std::size_t left = first.bytes().size() - sent_;
        if (bytes < left) {
            sent_ += bytes;
            return;
        }
        bytes -= left;
        sent_ = 0;
        if (total_ != nullptr) *total_ -= first.own.size();
        pieces_.pop_front();
    }
}

void Outbox::clear() {
    for (const Piece& piece : pieces_)
        if (total_ != nullptr) *total_ -= piece.own.size();
    pieces_.clear();
    bytes_ = sent_ = 0;
}

}  // namespace libddp
