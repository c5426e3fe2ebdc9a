// The socket under a handshake, as OpenSSL sees it.
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <string>

namespace libddp::wire {

// Takes few bytes from the peer, none beyond what OpenSSL asks for, and only if they look like TLS.
class Pipe {
public:
    // fd: non-blocking; the caller owns it.
    explicit Pipe(int fd) : fd_(fd) {}
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;

    // For SSL_set_bio, which owns it then. The pipe outlives its use. Null: out of memory. Inside Cryptography.
    BIO* make_bio();

    // Passes on to the kernel what OpenSSL has written. True: nothing is left. Throws UNAVAILABLE.
    bool flush();

    // Why OpenSSL got no more bytes. clear() before each call of OpenSSL that reads.
    enum class Stop { kNone, kNothingYet, kEnded, kBroken, kForeign, kTooMuch, kNoMemory };
    Stop stop() const { return stop_; }
    int error() const { return error_; }  // kBroken: the errno value
    void clear() { stop_ = Stop::kNone; }

private:
    static const BIO_METHOD* method();
    int read(char* to, int size);
    int write(const char* from, int size);

    const int fd_;
    std::size_t received_ = 0;
    Stop stop_ = Stop::kNone;
    int error_ = 0;
    std::string out_;
};

}  // namespace libddp::wire
