// The interface of a kind of store: a way to perform one request. Store makes calls of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/notifier.h"
#include "rendezvous/protocol.h"

namespace libddp {

class StoreEngine {
public:
    virtual ~StoreEngine() = default;

    // Performs a valid request, waiting as long as it says (kForever is not used here). One that
    // does not wait takes at most within_ms, or as long as this kind of store allows if that is 0.
    // Throws Error when the service cannot be asked; what the service says is in the outcome.
    virtual Outcome perform(Request request, std::int64_t within_ms) = 0;
    virtual Notifier::Id watch(const std::string& key, Notifier::Callback seen) = 0;
    virtual Notifier::Id watch_connection(Notifier::Callback lost) = 0;
    virtual void unwatch(Notifier::Id id) = 0;
    // Ends the connection. Calls in other threads throw ABORTED. Idempotent, at most 1 s.
    virtual void close() = 0;
    // Store::answers.
    virtual bool answers(std::int64_t within_ms);
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

}  // namespace libddp
