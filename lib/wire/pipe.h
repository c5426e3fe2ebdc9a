// The socket under a TLS connection, with buffers: OpenSSL reads and writes one record at a time, the kernel many at once.
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <memory>

namespace libddp::wire {

class Pipe {
public:
    // fd: non-blocking; the caller owns it.
    explicit Pipe(int fd) : fd_(fd) {}
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;

    // For SSL_set_bio, which owns it then. The pipe outlives its use. Null: out of memory. Inside Cryptography.
    BIO* make_bio();

    // A new pipe belongs to a handshake: it takes few bytes from the peer, none beyond what OpenSSL asks for, and only if they look like
    // TLS. From here on it reads ahead.
    void open_up() { handshake_ = false; }

    // Makes room for so many bytes of records, and passes on to the kernel what is held if that is needed. False: the kernel takes nothing
    // and the buffer is full. more: how many are likely to follow. Throws UNAVAILABLE.
    bool make_room(std::size_t bytes, std::size_t more);
    // Passes on to the kernel what is held. True: nothing is left. Throws UNAVAILABLE.
    bool flush();

    // Why OpenSSL got no more bytes. clear() before each call of OpenSSL that reads.
    enum class Stop { kNone, kNothingYet, kEnded, kBroken, kForeign, kTooMuch, kNoMemory };
    Stop stop() const { return stop_; }
    int error() const { return error_; }  // kBroken: the errno value
    void clear() { stop_ = Stop::kNone; }

private:
    struct Buffer {
        std::unique_ptr<char[]> bytes;
        std::size_t size = 0;
        std::size_t begin = 0;
        std::size_t end = 0;

        bool empty() const { return begin == end; }
        void resize(std::size_t new_size);  // keeps what it holds
        void drop() { *this = Buffer(); }
    };

    // Buffers grow from the first to the second while they are filled.
    static constexpr std::size_t kSmall = std::size_t{4} << 10;
    static constexpr std::size_t kLarge = std::size_t{256} << 10;

    static const BIO_METHOD* method();
    int read(char* to, int size);
    int write(const char* from, int size);
    long receive(char* to, std::size_t size);
    bool fill();

    const int fd_;
    bool handshake_ = true;
    std::size_t received_ = 0;  // during the handshake
    Stop stop_ = Stop::kNone;
    int error_ = 0;
    Buffer in_;
    Buffer out_;
    std::size_t next_size_ = kSmall;  // of in_
    std::size_t brought_ = 0;         // by in_ since the kernel had nothing
};

}  // namespace libddp::wire
