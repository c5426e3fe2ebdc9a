// The rest of a list of pieces of memory, taken from its front.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace libddp::wire {

class Parts {
public:
    Parts(const iovec* parts, int count) : at_(parts), end_(parts + count) {
        for (const iovec* part = at_; part != end_; ++part) left_ += part->iov_len;
        skip_empty();
    }

    std::size_t left() const { return left_; }

    // The rest of the first piece. Only if something is left.
    iovec front() const {
        return {static_cast<char*>(at_->iov_base) + taken_, at_->iov_len - taken_};
    }

    void skip(std::size_t bytes) {
        left_ -= bytes;
        while (bytes > 0) {
            const std::size_t step = std::min(bytes, at_->iov_len - taken_);
            taken_ += step;
            bytes -= step;
            skip_empty();
        }
    }

    // The next bytes as pieces, at most `most` of both. Returns how many pieces; `bytes` becomes
    // what they hold.
    int slice(iovec* pieces, int most, std::size_t& bytes) const {
        Parts rest = *this;
        std::size_t wanted = std::min(bytes, left_);
        int count = 0;
        bytes = 0;
        while (bytes < wanted && count < most) {
            pieces[count] = rest.front();
            pieces[count].iov_len = std::min(pieces[count].iov_len, wanted - bytes);
            bytes += pieces[count].iov_len;
            rest.skip(pieces[count].iov_len);
            ++count;
        }
        return count;
    }

    void copy_out(void* to, std::size_t bytes) const {
        each(bytes, [at = static_cast<char*>(to)](const iovec& piece) mutable {
            std::memcpy(at, piece.iov_base, piece.iov_len);
            at += piece.iov_len;
        });
    }
    void copy_in(const void* from, std::size_t bytes) const {
        each(bytes, [at = static_cast<const char*>(from)](const iovec& piece) mutable {
            std::memcpy(piece.iov_base, at, piece.iov_len);
            at += piece.iov_len;
        });
    }
    // Calls call(piece) for the pieces of the next bytes.
    template <class Call>
    void each(std::size_t bytes, Call call) const {
        for (Parts rest = *this; bytes > 0;) {
            iovec piece = rest.front();
            piece.iov_len = std::min(bytes, piece.iov_len);
            call(piece);
            rest.skip(piece.iov_len);
            bytes -= piece.iov_len;
        }
    }

private:
    void skip_empty() {
        while (at_ != end_ && taken_ == at_->iov_len) {
            ++at_;
            taken_ = 0;
        }
    }

    const iovec* at_;
    const iovec* end_;
    std::size_t taken_ = 0;  // of *at_
    std::size_t left_ = 0;
};

}  // namespace libddp::wire
