#include "comm/link.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "device/memory.h"
#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

std::atomic<int> blame_signal{0};

}  // namespace

void set_blame_signal(int signal) {
    blame_signal.store(signal, std::memory_order_relaxed);
}

std::shared_ptr<Link> Link::divide(std::int32_t color, std::int32_t key, const OpTag& tag,
                                   const Links& earlier) {
    if (color < -1)
        fail(DDP_ERROR_INVALID_ARGUMENT, "color is ", color,
             "; it is at least 0, or -1 to join no group");
    in_call("ddp_group_split", [this] { require_unbroken(); });
    struct Choice {
        std::int32_t color, key, rank;
    };
    std::vector<Choice> choices(static_cast<std::size_t>(world()));
    choices[static_cast<std::size_t>(rank())] = {color, key, rank()};
    run({DDP_COLLECTIVE_ALLGATHER, nullptr, choices.data(), sizeof(Choice), DDP_U8},
        tag.with(Purpose::kSplit));
    ++splits_;
    if (color < 0) return nullptr;

    GroupConfig config = config_;
    config.store = place_.store;
    config.absent = nullptr;
    config.counts = counts_;
    config.name = str(config_.name, "/", color);
    // The same color may join other ranks in each split.
    config.prefix = str(place_.prefix, group_keys::kParts, splits_, ".", color, "/");
    config.rank = 0;
    config.world = 0;
    for (const auto& other : choices) {
        if (other.color != color) continue;
        ++config.world;
        if (std::pair(other.key, other.rank) < std::pair(key, rank())) ++config.rank;
    }
    return create(config, earlier);
}

// The last owner may be what a verdict lets go of, on the monitor's own thread, for whose end the
// destructor waits.
void Link::destroy(Link* link) {
    const bool own_thread = (link->monitor_ && link->monitor_->on_own_thread()) ||
                            (link->devices_ && link->devices_->on_own_thread());
    if (!own_thread) {
        delete link;
        return;
    }
    try {
        quiet_thread([link] { delete link; }).detach();
    } catch (const Error& error) {
        log(LogLevel::kError, "group '", link->config_.name, "' is not freed: ", error.what());
    }
}

Link::~Link() {
    ErrorInfo left{DDP_ERROR_ABORTED, "the group was freed"};
    const auto comparisons = devices_ ? devices_->comparisons() : nullptr;
    if (comparisons && executor_->idle()) devices_->leave_comparisons();
    if (monitor_) monitor_->leave();
    // A rank that is done may not disturb the others, who may still be reading its last bytes:
    // abort only what would not end.
    const auto on_device = devices_ ? devices_->transport() : nullptr;
    const bool two_transports = on_device && on_device != transport_;
    if ((executor_ && !executor_->idle()) || (comparisons && !comparisons->idle())) {
        if (devices_) devices_->spoil_graphs();
        transport_->abort();
        if (two_transports) on_device->abort();
    }
    if (comparisons) comparisons->stop(left);
    if (executor_) executor_->stop(left);
    if (devices_) devices_->end();
    free_memory_of_graphs();
    monitor_.reset();  // its callbacks use the members above
    if (transport_) transport_->leave();
    if (two_transports) on_device->leave();
    recorder_.write({.kind = record::EventKind::kLeft});
}

std::shared_ptr<Store> Link::store() {
    if (place_.store) return place_.store;
    const Lock lock(mutex_);
    if (!lone_store_) {
        StoreConfig config;
        config.uri = "tcp://127.0.0.1:0";
        config.is_server = true;
        config.timeout_ms = config_.timeout_ms;
        config.secret = config_.secret;
        lone_store_ = open_store(config);
    }
    return lone_store_;
}

ErrorInfo Link::break_everywhere(const ErrorInfo& error) {
    const NoCancellation uncancelled;
    const auto alive = weak_from_this().lock();  // what fails now may own the group
    ErrorInfo agreed = error;
    if (monitor_)
        agreed = error.code == DDP_ERROR_INTERRUPTED ? monitor_->report_briefly(error)
                                                     : monitor_->report(error);
    on_verdict(agreed);
    return verdict();
}

ErrorInfo Link::adopt(const ErrorInfo& verdict, const Link& from) {
    const auto alive = weak_from_this().lock();
    const bool store_silent =
        place_.store == from.place_.store && from.monitor_ && from.monitor_->store_silent();
    on_verdict(monitor_ ? monitor_->adopt(verdict, store_silent) : verdict);
    return this->verdict();
}

void Link::on_verdict(const ErrorInfo& error) {
    std::shared_ptr<Transport> transport, on_device;
    std::shared_ptr<Executor> executor, comparisons;
    std::shared_ptr<Arbiter> arbiter;
    {
        const Lock lock(mutex_);
        arbiter = arbiter_.lock();
        transport = transport_;
        if (devices_) {
            devices_->spoil_graphs();
            on_device = devices_->transport();
            comparisons = devices_->comparisons();
        }
        executor = executor_;
    }
    const auto take = [this](const ErrorInfo& decided) {
        {
            const Lock lock(mutex_);
            if (!verdict_.ok()) return;
            recorder_.broken(decided);  // before anybody learns of it, who may exit at once
            verdict_ = decided;
        }
        if (const int signal = blame_signal.load(std::memory_order_relaxed);
            signal != 0 && decided.rank == rank())
            kill(getpid(), signal);
    };
    if (!arbiter) take(error);
    // While joining there may be nothing to stop yet: create() looks again when there is.
    if (transport) transport->abort();
    if (arbiter) take(arbiter->decide(*this, error));
    set_broken();
    if (executor) executor->refuse(verdict());
    // Streams go on then, without a result: everybody who waits for one must be able to see why.
    if (on_device) on_device->abort();
    // A queued operation may be the last to use memory and events of a device, whose functions may
    // not return before that.
    if (comparisons) comparisons->poison(verdict());
    if (executor) executor->poison(verdict());
}

bool Link::set_arbiter(const std::shared_ptr<Arbiter>& arbiter) {
    const Lock lock(mutex_);
    if (!arbiter_.expired()) return false;
    arbiter_ = arbiter;
    return true;
}

bool Link::has_arbiter() const {
    const Lock lock(mutex_);
    return !arbiter_.expired();
}

ErrorInfo Link::verdict() const {
    const Lock lock(mutex_);
    return verdict_;
}

std::shared_ptr<std::byte> Link::allocate(std::size_t bytes, const StreamPtr& stream) {
    if (stream) return devices_->allocate(bytes, stream);
    if (void* memory = transport_->allocate(bytes, {DDP_DEVICE_CPU, 0}))
        return {static_cast<std::byte*>(memory),
                [owner = transport_](std::byte* m) { owner->deallocate(m); }};
    return allocate_zeroed(bytes);
}

}  // namespace libddp
