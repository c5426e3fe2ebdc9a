// Input of another rank to collectives, among which are libddp's own: numbers of rows, orders,
// models. The program makes calls as in api.cc. The first byte says how many bytes after it are the
// other rank's.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ddp/backend.h"
#include "fuzz/program.h"
#include "rendezvous/store.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/store_state.h"

namespace fuzz::peers {
namespace {

using namespace libddp;

// A store in which the other rank has always done what this one waits for.
class OtherStore final : public StoreEngine {
public:
    Outcome perform(Request request, std::int64_t) override {
        const std::lock_guard lock(mutex_);
        switch (request.op) {
            case Op::kSet:
            case Op::kGet:
            case Op::kCompareSet:
            case Op::kCheck: {
                auto outcome = state_.apply(0, request);
                return outcome ? *outcome : state_.timed_out(request, kNoWait);
            }
            case Op::kAdd:
                return {DDP_OK, "", request.number, {}};
            default:
                return {};
        }
    }
    Notifier::Id watch(const std::string&, Notifier::Callback) override { return 0; }
    Notifier::Id watch_connection(Notifier::Callback) override { return 0; }
    void unwatch(Notifier::Id) override {}
    void close() override {}
    std::int64_t alive_until_ms() const override {
        return std::numeric_limits<std::int64_t>::max();
    }

private:
    std::mutex mutex_;
    StoreState state_;
};

// The other rank's input: mostly the same as this rank's.
class OtherRank {
public:
    void begin(std::string_view bytes) {
        const std::lock_guard lock(mutex_);
        bytes_ = Reader(bytes);
    }
    void run(const ddp_collective& c) {
        const std::lock_guard lock(mutex_);
        auto* const recv = static_cast<std::byte*>(c.recv);
        const std::size_t size = c.count * ddp_dtype_size(c.dtype);
        if (c.kind == DDP_COLLECTIVE_BARRIER || size == 0) return;
        if (recv != c.send) std::memmove(recv, c.send, size);
        if (c.kind == DDP_COLLECTIVE_ALLGATHER) {
            std::memmove(recv + size, c.send, size);
            change(recv + size, size);
        } else if (c.kind != DDP_COLLECTIVE_BROADCAST || c.root == 1) {
            change(recv, size);
        }
    }
    bool differs(void* theirs, std::size_t size) {
        const std::lock_guard lock(mutex_);
        if (bytes_.byte() < 250) return false;
        change(static_cast<std::byte*>(theirs), size);
        return true;
    }

private:
    void change(std::byte* data, std::size_t size) {
        const std::uint8_t what = bytes_.byte();
        if (what < 100) return;
        if (what >= 240) {
            const std::string_view pattern = bytes_.piece();
            for (std::size_t i = 0; !pattern.empty() && i < size; ++i)
                data[i] = static_cast<std::byte>(pattern[i % pattern.size()]);
            return;
        }
        // Numbers are likely to begin at these places.
        for (std::size_t changes = 1 + what % 4; changes > 0; --changes) {
            const std::size_t at = bytes_.number<std::uint16_t>() * (what < 200 ? 8U : 1U) % size;
            const std::uint64_t number =
                bytes_.flag()
                    ? bytes_.number<std::uint64_t>()
                    : static_cast<std::uint64_t>(std::int64_t{bytes_.number<std::int8_t>()});
            std::memcpy(data + at, &number, std::min(sizeof number, size - at));
        }
    }

    std::mutex mutex_;
    Reader bytes_{{}};
};

OtherRank& other_rank() {
    static OtherRank& rank = *new OtherRank;
    return rank;
}

const ddp_backend& backend() {
    static const ddp_backend table = [] {
        ddp_backend made{};
        made.struct_size = sizeof made;
        made.abi_version = DDP_BACKEND_ABI_VERSION;
        made.name = "peers";
        made.create = [](const ddp_backend_host*, void** transport, ddp_backend_failure*) {
            *transport = nullptr;
            return ddp_status{DDP_OK};
        };
        made.destroy = [](void*) {};
        made.capabilities = [](void*) { return std::uint32_t{0}; };
        made.abort = [](void*) {};
        made.run = [](void*, const ddp_collective* collective, ddp_backend_failure*) {
            other_rank().run(*collective);
            return ddp_status{DDP_OK};
        };
        made.match = [](void*, const void* mine, void* theirs, std::size_t size, std::int64_t,
                        std::int32_t* rank, ddp_backend_failure*) -> ddp_status {
            std::memcpy(theirs, mine, size);
            *rank = 1;
            return other_rank().differs(theirs, size) ? DDP_ERROR_MISMATCH : DDP_OK;
        };
        return made;
    }();
    return table;
}

// Rank 0 of two.
class Group {
public:
    Group()
        : store_{std::make_shared<Store>(std::make_shared<OtherStore>(), StoreConfig(),
                                         "the other rank's store")} {
        static const bool registered = ddp_backend_register(&backend(), nullptr) == DDP_OK;
        ddp_group_options options;
        ddp_group_options_init(&options);
        options.rank = 0;
        options.world_size = 2;
        options.backend = "peers";
        options.store = &store_;
        options.timeout_ms = 5000;
        check(registered && ddp_group_create(&options, &group_, nullptr) == DDP_OK,
              "there is no group");
    }
    ~Group() { ddp_group_free(group_); }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    ddp_group* get() const { return group_; }

private:
    ddp_store store_;
    ddp_group* group_ = nullptr;
};

}  // namespace

DDP_FUZZ_TARGET(peers, input) {
    constexpr int kMostCalls = 40;
    static std::unique_ptr<Group> group;
    if (!group) group = std::make_unique<Group>();
    Reader bytes(input);
    const std::size_t theirs = bytes.byte();
    other_rank().begin(bytes.take(theirs));
    {
        Program program(bytes, group->get(), /*honest=*/false);
        for (int calls = 0; calls < kMostCalls && !bytes.empty(); ++calls) program.step();
    }
    other_rank().begin({});
    if (ddp_group_status(group->get(), nullptr) != DDP_OK) group = nullptr;
}

}  // namespace fuzz::peers
