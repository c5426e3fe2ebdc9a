// The services that libddp's core gives a backend, for tests: a store in memory or in a folder, and
// ranks that are threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "backends/gloo/transport.h"
#include "backends/hierarchical/transport.h"
#include "backends/shm/transport.h"
#include "backends/tcp/transport.h"
#include "ddp/backend.h"
#include "ddp/group.h"
#include "kernels/parts.h"
#include "support/slack.h"

namespace libddp::testing_backend {

class KeyValueStore {
public:
    virtual ~KeyValueStore() = default;
    virtual void set(const std::string& key, const std::string& value) = 0;
    virtual ddp_status get(const std::string& key, std::int64_t timeout_ms, std::string& value) = 0;
};

class MemoryStore final : public KeyValueStore {
public:
    void set(const std::string& key, const std::string& value) override {
        const std::lock_guard lock(mutex_);
        values_[key] = value;
        changed_.notify_all();
    }
    ddp_status get(const std::string& key, std::int64_t timeout_ms, std::string& value) override {
        std::unique_lock lock(mutex_);
        const auto there = [&] { return broken_ != DDP_OK || values_.count(key) > 0; };
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        if (!changed_.wait_until(lock, until, there)) return DDP_ERROR_TIMEOUT;
        if (broken_ != DDP_OK) return broken_;
        value = values_[key];
        return DDP_OK;
    }
    // As when the group breaks: waits end with this status.
    void break_with(ddp_status status) {
        const std::lock_guard lock(mutex_);
        broken_ = status;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
    ddp_status broken_ = DDP_OK;
};

// Shared by processes. A value appears whole, by rename.
class FolderStore final : public KeyValueStore {
public:
    explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}
    void set(const std::string& key, const std::string& value) override {
        const std::string path = path_of(key), draft = path + ".draft";
        std::ofstream(draft, std::ios::binary) << value;
        std::filesystem::rename(draft, path);
    }
    ddp_status get(const std::string& key, std::int64_t timeout_ms, std::string& value) override {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        while (!std::filesystem::exists(path_of(key))) {
            if (std::chrono::steady_clock::now() > until) return DDP_ERROR_TIMEOUT;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        std::ifstream in(path_of(key), std::ios::binary);
        std::ostringstream text;
        text << in.rdbuf();
        value = text.str();
        return DDP_OK;
    }

private:
    std::string path_of(const std::string& key) const {
        std::string name = key;
        for (char& c : name)
            if (c == '/') c = '_';
        return folder_ + "/" + name;
    }
    std::string folder_;
};

// One rank: its host services, its transport, and the last failure.
class Rank {
public:
    Rank(KeyValueStore& store, int rank, int world, const std::string& options = "",
         std::int64_t create_ms = 20000, std::uint32_t flags = 0,
         const ddp_backend* backend = gloo_backend(), int hosts = 1)
        : store_(store), options_(options), backend_(*backend), hosts_(hosts) {
        host_.struct_size = sizeof host_;
        host_.handle = this;
        host_.rank = rank;
        host_.world_size = world;
        host_.group_name = "test";
        host_.options = options_.c_str();
        host_.timeout_ms = create_ms;
        host_.flags = flags;
        host_.reserved0 = 0;
        host_.store_set = [](void* self, const char* key, const void* value, std::size_t size,
                             ddp_backend_failure*) {
            static_cast<Rank*>(self)->store(key, {static_cast<const char*>(value), size});
            return ddp_status{DDP_OK};
        };
        host_.store_get = &Rank::store_get;
        host_.store_value_free = &std::free;
        host_.log = [](void*, std::int32_t, const char*) {};
        host_.interrupted = [](void* self) -> std::int32_t {
            const Rank& asked = *static_cast<Rank*>(self);
            return asked.interrupted && asked.interrupted() ? 1 : 0;
        };
        clear();
        status = backend_.create(&host_, &transport_, &failure);
    }
    ~Rank() { destroy(); }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    void destroy() {
        if (transport_) backend_.destroy(transport_);
        transport_ = nullptr;
    }
    void abort() { backend_.abort(transport_); }
    std::uint32_t capabilities() { return backend_.capabilities(transport_); }
    const ddp_backend& backend() const { return backend_; }
    const ddp_backend_host& host() const { return host_; }
    void* transport() { return transport_; }
    // Memory of the backend's own; ends the test where it has none to give.
    void* allocate(std::size_t bytes) {
        void* memory = nullptr;
        clear();
        status = backend_.allocate(transport_, bytes, {DDP_DEVICE_CPU, 0}, &memory, &failure);
        return memory;
    }
    void deallocate(void* memory) { backend_.deallocate(transport_, memory); }
    int rank() const { return host_.rank; }
    int world() const { return host_.world_size; }

    ddp_status run(ddp_collective_kind kind, ddp_dtype dtype, ddp_reduce_op op, const void* send,
                   void* recv, std::size_t count, double scale = 1, int root = 0) {
        return run(collective(kind, dtype, op, send, recv, count, scale, root));
    }
    // In place, with a part for each rank.
    ddp_status run_in_parts(ddp_collective_kind kind, ddp_dtype dtype, void* all,
                            const std::vector<std::uint64_t>& counts, double scale = 1) {
        ddp_collective c = collective(kind, dtype, DDP_SUM, all, all, 0, scale);
        c.counts = counts.data();
        for (const std::uint64_t count : counts) c.count += static_cast<std::size_t>(count);
        void* const own = part_of(c, all, rank());
        if (kind == DDP_COLLECTIVE_ALLGATHER)
            c.send = own;
        else
            c.recv = own;
        return run(c);
    }
    ddp_status allreduce(std::vector<float>& data) {
        return run(DDP_COLLECTIVE_ALLREDUCE, DDP_F32, DDP_SUM, data.data(), data.data(),
                   data.size());
    }
    ddp_status barrier() {
        return run(DDP_COLLECTIVE_BARRIER, DDP_U8, DDP_SUM, nullptr, nullptr, 0);
    }
    // Where the backend compares in each collective: in one that does nothing else.
    ddp_status match(const std::string& mine) {
        theirs.assign(mine.size(), '\0');
        their_rank = -1;
        clear();
        if (backend_.match)
            return status = backend_.match(transport_, mine.data(), theirs.data(), mine.size(),
                                           timeout_ms, &their_rank, &failure);
        if (run_compared(collective(DDP_COLLECTIVE_BARRIER, DDP_U8, DDP_SUM, nullptr, nullptr, 0),
                         mine) == DDP_ERROR_MISMATCH)
            their_rank = failure.rank;
        return status;
    }
    // As a link does: the backend compares while it runs, or before.
    ddp_status compared_allreduce(std::vector<float>& data, const std::string& mine) {
        if ((capabilities() & DDP_BACKEND_COMPARES) == 0)
            return match(mine) == DDP_OK ? allreduce(data) : status;
        return run_compared(collective(DDP_COLLECTIVE_ALLREDUCE, DDP_F32, DDP_SUM, data.data(),
                                       data.data(), data.size()),
                            mine);
    }
    ddp_status run(const ddp_collective& c) {
        clear();
        return status = backend_.run(transport_, &c, &failure);
    }

    ddp_status status = DDP_OK;
    ddp_backend_failure failure;
    std::string theirs;
    std::int32_t their_rank = -1;
    std::int64_t timeout_ms = 20000;
    std::uint64_t copied = 0;           // bytes, since the beginning
    std::function<bool()> interrupted;  // whether the program wants the wait to end; empty: no

private:
    ddp_collective collective(ddp_collective_kind kind, ddp_dtype dtype, ddp_reduce_op op,
                              const void* send, void* recv, std::size_t count, double scale = 1,
                              int root = 0) {
        ddp_collective c{};
        c.struct_size = sizeof c;
        c.copied_bytes = &copied;
        c.kind = kind;
        c.dtype = dtype;
        c.op = op;
        c.root = root;
        c.send = send;
        c.recv = recv;
        c.count = count;
        c.scale = scale;
        c.timeout_ms = timeout_ms;
        return c;
    }
    ddp_status run_compared(ddp_collective c, const std::string& mine) {
        theirs.assign(mine.size(), '\0');
        c.signature = mine.data();
        c.signature_size = mine.size();
        c.theirs = theirs.data();
        return run(c);
    }
    // Where ranks are is what they say in the store.
    void store(const std::string& key, std::string value) {
        if (key == "topology/" + std::to_string(rank()) && rank() % hosts_ != 0)
            value += " beside host " + std::to_string(rank() % hosts_);
        store_.set(key, value);
    }
    static ddp_status store_get(void* self, const char* key, std::int64_t wait_ms, void** value,
                                std::size_t* size, ddp_backend_failure* why) {
        std::string text;
        const ddp_status result = static_cast<Rank*>(self)->store_.get(key, wait_ms, text);
        if (result != DDP_OK) {
            std::strcpy(why->message, "the test's store says so");
            return result;
        }
        *size = text.size();
        *value = std::malloc(text.size() + 1);
        std::memcpy(*value, text.c_str(), text.size() + 1);
        return DDP_OK;
    }
    void clear() {
        std::memset(&failure, 0, sizeof failure);
        failure.rank = -1;
    }

    KeyValueStore& store_;
    std::string options_;
    const ddp_backend& backend_;
    const int hosts_;
    ddp_backend_host host_{};
    void* transport_ = nullptr;
};

// Runs body(rank) for each rank on a thread of its own. When all have ended, throws what the first
// of them threw.
inline void each_rank(int world, const std::function<void(int)>& body) {
    std::vector<std::future<void>> ranks;
    for (int rank = 0; rank < world; ++rank)
        ranks.push_back(std::async(std::launch::async, body, rank));
    for (auto& rank : ranks) rank.wait();
    for (auto& rank : ranks) rank.get();
}

// A backend with options.
struct Kind {
    const char* name;
    const ddp_backend* backend;
    const char* options = "";
    bool allocated = false;  // messages lie in memory of the backend
    int hosts = 1;           // ranks seem to be on so many, in turn
};

template <class Instance>
std::string name_of(const Instance& instance) {
    return instance.param.name;
}

// A connected world. Ranks live until the object goes.
class World {
public:
    World(int size, const Kind& kind)
        : World(size, kind.options, 0, 20000, kind.backend, kind.hosts) {}
    explicit World(int size, const std::string& options = "", std::uint32_t flags = 0,
                   std::int64_t timeout_ms = 20000, const ddp_backend* backend = gloo_backend(),
                   int hosts = 1)
        : ranks_(static_cast<std::size_t>(size)) {
        each_rank(size, [&](int r) {
            ranks_[static_cast<std::size_t>(r)] =
                std::make_unique<Rank>(store_, r, size, options, timeout_ms, flags, backend, hosts);
        });
    }
    Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
    int size() const { return static_cast<int>(ranks_.size()); }
    bool connected() const {
        for (auto& rank : ranks_)
            if (rank->status != DDP_OK) return false;
        return true;
    }
    void each(const std::function<void(Rank&)>& body) {
        each_rank(size(), [&](int r) { body((*this)[r]); });
    }

private:
    MemoryStore store_;
    std::vector<std::unique_ptr<Rank>> ranks_;
};

inline std::int64_t elapsed_ms(std::chrono::steady_clock::time_point since) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 since)
        .count();
}

}  // namespace libddp::testing_backend
