#include "comm/transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "comm/registry.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"
#include "record/operation.h"
#include "util/boundary.h"
#include "util/deadline.h"
#include "util/interrupt.h"
#include "util/log.h"

namespace libddp {
namespace {

// Waits in the store are cut into pieces of this length, so that they end soon after the group
// broke.
constexpr std::int64_t kStoreSliceMs = 200;

ddp_backend_failure no_failure() {
    ddp_backend_failure failure;
    failure.rank = -1;
    failure.message[0] = '\0';  // the rest costs as much as a short collective
    return failure;
}

}  // namespace

// The services that a backend calls. They must not throw: the backend may be C.
struct Transport::Host {
    explicit Host(const Setup& setup_) : setup(setup_) {
        services.struct_size = sizeof services;
        services.handle = this;
        services.rank = setup.rank;
        services.world_size = setup.world;
        services.group_name = setup.group_name.c_str();
        services.options = setup.options.c_str();
        services.timeout_ms = setup.timeout_ms;
        services.flags = setup.flags;
        services.reserved0 = 0;
        services.store_set = &store_set;
        services.store_get = &store_get;
        services.store_value_free = &std::free;
        services.log = &write_log;
        services.interrupted = [](void*) -> std::int32_t { return interrupt::wanted() ? 1 : 0; };
        services.store_delete = &store_delete;
    }

    template <class F>
    static ddp_status guarded(void* handle, ddp_backend_failure* failure, F&& body) noexcept {
        return at_boundary(failure, [&] {
            auto& host = *static_cast<Host*>(handle);
            if (!host.setup.store)
                fail(DDP_ERROR_INVALID_STATE, "a group of one rank has no store");
            body(host);
        });
    }

    static ddp_status store_set(void* handle, const char* key, const void* value, size_t size,
                                ddp_backend_failure* failure) {
        return guarded(handle, failure, [&](Host& host) {
            host.setup.store->set(host.setup.prefix + key, {static_cast<const char*>(value), size});
        });
    }

    static ddp_status store_get(void* handle, const char* key, int64_t timeout_ms, void** value,
                                size_t* size, ddp_backend_failure* failure) {
        return guarded(handle, failure, [&](Host& host) {
            const std::string found = host.wait_for(host.setup.prefix + key, timeout_ms);
            auto* copy = static_cast<char*>(std::malloc(found.size() + 1));
            if (!copy) throw std::bad_alloc();
            std::memcpy(copy, found.c_str(), found.size() + 1);
            *value = copy;
            *size = found.size();
        });
    }

    static ddp_status store_delete(void* handle, const char* key, ddp_backend_failure* failure) {
        return guarded(handle, failure,
                       [&](Host& host) { host.setup.store->remove(host.setup.prefix + key); });
    }

    static void write_log(void* handle, int32_t level, const char* message) {
        auto& host = *static_cast<Host*>(handle);
        if (level >= 1 && level <= 4)
            log(static_cast<LogLevel>(level), "group '", host.setup.group_name, "' rank ",
                host.setup.rank, ": ", message);
    }

    std::string wait_for(const std::string& key, std::int64_t timeout_ms) {
        const auto deadline = Deadline::after_ms(timeout_ms != 0 ? timeout_ms : setup.timeout_ms);
        for (;;) {
            if (ErrorInfo verdict = setup.verdict(); !verdict.ok()) throw Error(verdict);
            try {
                const std::int64_t slice =
                    std::min(kStoreSliceMs, std::max<std::int64_t>(1, deadline.remaining_ms()));
                return setup.store->get(key, timeout_ms < 0 ? -1 : slice);
            } catch (const Error& error) {
                if (error.info().code != DDP_ERROR_TIMEOUT || deadline.expired()) throw;
            }
        }
    }

    const Setup& setup;
    ddp_backend_host services;
};

Transport::Transport(const ddp_backend* backend, Setup setup)
    : backend_(backend), setup_(std::move(setup)) {
    host_ = std::make_unique<Host>(setup_);
    if (!backend_) choose();
    auto failure = no_failure();
    check(backend_->create(&host_->services, &transport_, &failure), failure, "create()",
          "connecting");
    capabilities_ = backend_->capabilities(transport_);
}

void Transport::choose() {
    std::string why;
    backend_ = choose_backend(host_->services, why);
    log(LogLevel::kInfo, "group '", setup_.group_name, "': backend ", backend_->name, ", because ",
        why);
    // Options that a program gives with "auto" are about the network.
    if (std::string_view(backend_->name) == "shm") host_->services.options = "";
}

Transport::~Transport() {
    backend_->destroy(transport_);
}

void Transport::leave() {
    if (backend_->struct_size > offsetof(ddp_backend, leave) && backend_->leave)
        backend_->leave(transport_);
}

void Transport::run(const ddp_collective& collective) {
    const bool exchange = collective.kind == DDP_COLLECTIVE_ALL_TO_ALL;
    if (exchange && !has(DDP_BACKEND_ALL_TO_ALL)) return run_by_broadcasts(collective);
    const bool gives = has(DDP_BACKEND_GIVES) && (!collective.counts || has(DDP_BACKEND_COUNTS));
    if (collective.take && !gives) return run_and_take(collective);
    if (collective.counts && !exchange && !has(DDP_BACKEND_COUNTS)) return run_in_parts(collective);
    auto failure = no_failure();
    const ddp_status status = backend_->run(transport_, &collective, &failure);
    if (status != DDP_OK)
        check(status, failure, str("run() of ", collective_name(collective.kind)), "");
}

void Transport::run_and_take(ddp_collective c) {
    const auto take = std::exchange(c.take, nullptr);
    run(c);
    if (c.kind == DDP_COLLECTIVE_ALLREDUCE) {
        c.take = take;
        return take_share(c, c.recv, setup_.rank, setup_.world);
    }
    if (c.kind == DDP_COLLECTIVE_REDUCE_SCATTER) {
        c.take = take;
        return take_part(c, setup_.rank);
    }
    std::size_t offset = 0;
    for (std::int32_t rank = 0; rank < setup_.world; ++rank) {
        const std::size_t bytes = static_cast<std::size_t>(c.counts[rank]) * dtype_size(c.dtype);
        if (rank != setup_.rank && bytes > 0)
            take(c.taker, static_cast<const std::byte*>(c.recv) + offset, offset, bytes);
        offset += bytes;
    }
}

// Where the backend knows parts of one size only. Ranks have compared their signatures once.
void Transport::run_in_parts(ddp_collective c) {
    const std::uint64_t* const counts = std::exchange(c.counts, nullptr);
    if (c.kind == DDP_COLLECTIVE_REDUCE_SCATTER) {
        c.kind = DDP_COLLECTIVE_ALLREDUCE;
        c.recv = const_cast<void*>(c.send);
        return run(c);
    }
    c.kind = DDP_COLLECTIVE_BROADCAST;
    auto* next = static_cast<std::byte*>(c.recv);
    for (c.root = 0; c.root < setup_.world; ++c.root) {
        c.count = static_cast<std::size_t>(counts[c.root]);
        c.send = c.recv = next;
        next += c.count * dtype_size(c.dtype);
        if (c.count == 0) continue;
        run(c);
        c.signature_size = 0;
    }
}

// An all_to_all where the backend knows none: each rank's input goes to all. It passes through
// memory of the largest input.
void Transport::run_by_broadcasts(ddp_collective c) {
    const ddp_collective whole = c;
    const Exchanged exchanged(whole, setup_.world);
    std::size_t most = 0;
    for (int rank = 0; rank < setup_.world; ++rank)
        most = std::max(most, all_parts(exchanged.input(rank), setup_.world));
    const std::unique_ptr<std::byte[]> passing(new std::byte[most * dtype_size(c.dtype)]);
    c.kind = DDP_COLLECTIVE_BROADCAST;
    c.counts = nullptr;
    c.recv = passing.get();
    auto* next = static_cast<std::byte*>(whole.recv);
    for (c.root = 0; c.root < setup_.world; ++c.root) {
        const ddp_collective input = exchanged.input(c.root);
        c.count = all_parts(input, setup_.world);
        c.send = c.root == setup_.rank ? whole.send : c.recv;
        // The first compares signatures, even if it is empty.
        if (c.root == 0 || c.count > 0) run(c);
        c.signature_size = 0;
        const std::size_t bytes = part_bytes(input, setup_.rank);
        if (bytes > 0) std::memcpy(next, part_of(input, c.recv, setup_.rank), bytes);
        next += bytes;
    }
}

bool Transport::has_ready() const {
    return backend_->struct_size > offsetof(ddp_backend, ready) && backend_->ready;
}

bool Transport::ready(const ddp_collective& collective, std::int64_t patience_ns) {
    // run() gives it others
    if (collective.kind == DDP_COLLECTIVE_ALL_TO_ALL && !has(DDP_BACKEND_ALL_TO_ALL)) return false;
    if (collective.counts && !has(DDP_BACKEND_COUNTS)) return false;
    auto failure = no_failure();
    std::int32_t all_here = 0;
    check(backend_->ready(transport_, &collective, patience_ns, &all_here, &failure), failure,
          "ready()", "");
    return all_here != 0;
}

bool Transport::match(const void* mine, void* theirs, std::size_t size, std::int64_t timeout_ms,
                      std::int32_t* rank) {
    if (!backend_->match) return match_by_allgather(mine, theirs, size, timeout_ms, rank);
    auto failure = no_failure();
    auto status = backend_->match(transport_, mine, theirs, size, timeout_ms, rank, &failure);
    if (status == DDP_ERROR_MISMATCH) return false;
    check(status, failure, "match()", "");
    return true;
}

bool Transport::match_by_allgather(const void* mine, void* theirs, std::size_t size,
                                   std::int64_t timeout_ms, std::int32_t* rank) {
    std::vector<char> all(size * static_cast<std::size_t>(setup_.world));
    ddp_collective gather;
    std::memset(&gather, 0, sizeof gather);
    gather.struct_size = sizeof gather;
    gather.kind = DDP_COLLECTIVE_ALLGATHER;
    gather.dtype = DDP_U8;
    gather.op = DDP_SUM;
    gather.send = mine;
    gather.recv = all.data();
    gather.count = size;
    gather.scale = 1;
    gather.timeout_ms = timeout_ms;
    run(gather);
    for (std::int32_t r = 0; r < setup_.world; ++r) {
        const char* other = all.data() + size * static_cast<std::size_t>(r);
        if (std::memcmp(other, mine, size) == 0) continue;
        std::memcpy(theirs, other, size);
        *rank = r;
        return false;
    }
    return true;
}

void* Transport::allocate(std::size_t bytes, const ddp_device& device) {
    if (!backend_->allocate) return nullptr;
    auto failure = no_failure();
    void* memory = nullptr;
    const Lock lock(memory_mutex_);
    check(backend_->allocate(transport_, bytes, device, &memory, &failure), failure, "allocate()",
          "allocating a bucket");
    return memory;
}

void Transport::deallocate(void* memory) {
    const Lock lock(memory_mutex_);
    backend_->deallocate(transport_, memory);
}

void Transport::check_enqueued() {
    if (backend_->struct_size <= offsetof(ddp_backend, check) || !backend_->check) return;
    auto failure = no_failure();
    check(backend_->check(transport_, &failure), failure, "check()", "");
}

// call: of the backend, for a failure without a text. what: what the reader knows better.
void Transport::check(ddp_status status, const ddp_backend_failure& failure, std::string_view call,
                      const char* what) const {
    if (status == DDP_OK) return;
    const bool known = status < DDP_OK && status >= kLastError;
    std::string why(failure.message, strnlen(failure.message, sizeof failure.message));
    if (why.empty())
        why = str(call, " returned ", known ? status_name(status) : std::to_string(status),
                  " and no message");
    else if (!known)
        why += str(" (", call, " returned ", status, ", which is no status)");
    throw Error(ErrorInfo{known ? status : DDP_ERROR_INTERNAL,
                          str("backend ", backend_->name, *what ? ", " : "", what, ": ", why),
                          failure.rank < setup_.world ? failure.rank : -1});
}

}  // namespace libddp
