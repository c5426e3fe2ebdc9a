// The interface of a kind of store: a way to perform one request. EngineStore makes the Store interface of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/notifier.h"
#include "rendezvous/protocol.h"
#include "rendezvous/store.h"

namespace libddp {

class StoreEngine {
public:
    virtual ~StoreEngine() = default;

    // Performs a valid request, waiting as long as it says (kForever is not used here). One that does not wait takes at most
    // within_ms, or as long as this kind of store allows if that is 0. Throws Error when the service cannot be asked; what the
    // service says is in the outcome.
    virtual Outcome perform(Request request, std::int64_t within_ms) = 0;
    virtual Notifier::Id watch(const std::string& key, Notifier::Callback seen) = 0;
    virtual Notifier::Id watch_connection(Notifier::Callback lost) = 0;
    virtual void unwatch(Notifier::Id id) = 0;
    // Ends the connection. Calls in other threads throw ABORTED. Idempotent, at most 1 s.
    virtual void close() = 0;
    // Store::answers. A file answers as long as it is there.
    virtual bool answers(std::int64_t) { return true; }
    virtual int port() const { return -1; }
    // Store::notices_death_ms.
    virtual std::int64_t notices_death_ms() const { return 0; }
    // Store::raise_fence. This one keeps it among the keys.
    virtual std::int64_t raise_fence(std::int64_t at_least);
    // Store::alive_until_ms.
    virtual std::int64_t alive_until_ms() const = 0;
};

// Fences are below this, so that there is always a next one.
inline constexpr std::int64_t kLastFence = std::int64_t{1} << 60;
// As to_string writes it. Throws Error (IO).
std::int64_t read_fence(std::string_view text);

class EngineStore final : public Store {
public:
    // config: how a client reaches the service again.
    EngineStore(std::shared_ptr<StoreEngine> engine, StoreConfig config, std::string description);
    EngineStore(const EngineStore& owner, std::int64_t within_ms);  // owner.bounded(within_ms)
    ~EngineStore() override;

    void set(const std::string& key, std::string_view value) override;
    std::string get(const std::string& key, std::int64_t timeout_ms) override;
    std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) override;
    std::int64_t add(const std::string& key, std::int64_t amount) override;
    bool check(const Keys& keys) override;
    void wait(const Keys& keys, std::int64_t timeout_ms) override;
    bool remove(const std::string& key) override;
    Keys list_keys(const std::string& prefix) override;
    void set_will(const std::string& key, std::string_view value) override;
    void set_will(const std::string& key, std::string_view value, const std::string& holder_key,
                  std::string_view holder) override;
    void remove_will(const std::string& key) override;
    std::int64_t notices_death_ms() const override { return engine_->notices_death_ms(); }
    std::int64_t raise_fence(std::int64_t at_least) override;
    std::int64_t alive_until_ms() const override { return engine_->alive_until_ms(); }
    Watch watch(const std::string& key, std::function<void(std::string value)> seen) override;
    void unwatch(Watch watch) override;
    Watch watch_connection(std::function<void(std::string reason, bool graceful)> lost) override;
    void close() override;
    bool answers(std::int64_t within_ms) override;
    std::shared_ptr<Store> reconnect(std::int64_t within_ms) override;
    std::shared_ptr<Store> bounded(std::int64_t within_ms) override;
    int port() const override;
    std::string describe() const override { return description_; }

private:
    Outcome call(Request request) const;
    std::int64_t resolve(std::int64_t timeout_ms) const;

    // Calls copy the pointer: a thread that is still in one keeps the engine alive while this object goes away.
    std::shared_ptr<StoreEngine> engine_;
    const StoreConfig config_;
    std::string description_;
    const bool owns_connection_;
    const std::int64_t within_ms_;  // 0: as long as the engine allows
};

}  // namespace libddp
