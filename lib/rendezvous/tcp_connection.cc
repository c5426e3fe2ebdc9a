#include "rendezvous/tcp_connection.h"

#include <utility>

#include "rendezvous/auth.h"
#include "rendezvous/sockets.h"
#include "rendezvous/uv_tools.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp {

TcpConnection::TcpConnection(uv_loop_t* loop, std::uint64_t id, const std::string& secret, Listener& listener)
    : id_(id), secret_(secret), listener_(listener) {
    uv_tcp_init(loop, &tcp_);
    tcp_.data = this;
}

void TcpConnection::accept(uv_stream_t* server) {
    uv_os_fd_t fd = -1;
    if (uv_accept(server, stream()) != 0 || uv_fileno(reinterpret_cast<uv_handle_t*>(&tcp_), &fd) != 0) return close();
    tune_socket(fd);
    start_reading();
}

void TcpConnection::start_reading() {
    auto arrived = [](uv_stream_t* from, ssize_t count, const uv_buf_t* buffer) {
        auto* self = static_cast<TcpConnection*>(from->data);
        if (count < 0) return self->close();
        self->receive({buffer->base, static_cast<std::size_t>(count)});
    };
    if (uv_read_start(stream(), read_into_shared, arrived) != 0) close();
}

void TcpConnection::send(std::string bytes) {
    if (uv_is_closing(reinterpret_cast<uv_handle_t*>(&tcp_)) || state_ == State::kFinishing) return;
    write_owned(stream(), std::move(bytes), [this](int status) { on_written(status); });
    if (uv_stream_get_write_queue_size(stream()) > kHopeless) {
        log(LogLevel::kWarn, "store: a client that does not read its answers is disconnected");
        close();
    }
}

void TcpConnection::on_written(int status) {
    if (status == UV_ECANCELED) return;  // by close(): on_closed follows
    if (status != 0) return close();
    if (!paused_ || congested()) return;
    paused_ = false;
    drain_frames();
    if (!paused_ && !uv_is_closing(reinterpret_cast<uv_handle_t*>(&tcp_))) start_reading();
}

void TcpConnection::finish(std::string last) {
    send(std::move(last));
    state_ = State::kFinishing;
    auto* shutdown = new uv_shutdown_t;
    int status = uv_shutdown(shutdown, stream(), [](uv_shutdown_t* done, int) { delete done; });
    if (status != 0) {
        delete shutdown;
        close();
    } else if (std::exchange(paused_, false)) {
        start_reading();  // else the peer's end of stream would go unseen
    }
}

void TcpConnection::close() {
    close_once(&tcp_, [](uv_handle_t* handle) {
        auto* self = static_cast<TcpConnection*>(handle->data);
        self->listener_.on_closed(*self);
    });
}

void TcpConnection::receive(std::string_view bytes) {
    try {
        if (state_ == State::kFinishing) return;
        if (state_ == State::kOpen) {
            frames_.feed(bytes);
            return drain_frames();
        }
        // A client sends nothing beyond the two messages before it has the verdict, so this stays tiny.
        greeting_.append(bytes);
        advance_handshake();
    } catch (const std::exception& error) {
        log(LogLevel::kInfo, "store: a connection is closed: ", error.what());
        close();
    }
}

void TcpConnection::advance_handshake() {
    const std::string known = encode_hello(Role::kClient, "").substr(0, 4);
    if (greeting_.size() > (state_ == State::kHello ? kHelloSize : kProofSize))
        fail(DDP_ERROR_IO, "more bytes than the handshake has");
    if (state_ == State::kHello && greeting_.compare(0, 4, known, 0, greeting_.size()) != 0)
        fail(DDP_ERROR_IO, "the client is not libddp");
    if (state_ == State::kHello && greeting_.size() == kHelloSize)
        answer_hello();
    else if (state_ == State::kProof && greeting_.size() == kProofSize)
        check_proof();
    else
        return;
    // At once: this thread may outlive the cryptographic library's own clean-up when the process exits.
    release_thread_state();
}

void TcpConnection::answer_hello() {
    Hello hello = decode_hello(Role::kClient, greeting_);
    client_nonce_ = hello.nonce;
    server_nonce_ = make_nonce();
    greeting_.clear();
    std::string answer = encode_hello(Role::kServer, server_nonce_);
    // The client of another version learns ours from the answer and says what is wrong.
    if (hello.version != kProtocolVersion) return finish(std::move(answer));
    state_ = State::kProof;
    send(std::move(answer));
}

void TcpConnection::check_proof() {
    if (!same_proof(greeting_, make_proof(Role::kClient, secret_, client_nonce_, server_nonce_))) {
        log(LogLevel::kWarn, "store: a client with another job secret was refused");
        return finish(refused_verdict());
    }
    greeting_.clear();
    greeting_.shrink_to_fit();
    state_ = State::kOpen;
    send(accepted_verdict(make_proof(Role::kServer, secret_, client_nonce_, server_nonce_)));
}

void TcpConnection::drain_frames() {
    try {
        while (state_ == State::kOpen && !uv_is_closing(reinterpret_cast<uv_handle_t*>(&tcp_))) {
            if (congested()) {
                paused_ = true;
                uv_read_stop(stream());
                return;
            }
            auto frame = frames_.next();
            if (!frame) return;
            listener_.on_frame(*this, *frame);
        }
    } catch (const std::exception& error) {
        log(LogLevel::kInfo, "store: a connection is closed: ", error.what());
        close();
    }
}

}  // namespace libddp
