#include "comm/link.h"

#include <cstring>
#include <vector>

#include "comm/link_operation.h"
#include "comm/registry.h"
#include "comm/verdict.h"
#include "device/memory.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

Executor::Runner runner_for(const Transport& transport) {
    const bool callers = transport.has(DDP_BACKEND_CALLER_THREAD);
    if (!transport.has(DDP_BACKEND_ONE_THREAD))
        return callers ? Executor::Runner::kWaitingThread : Executor::Runner::kAnyone;
    if (callers)
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend '", transport.name(),
             "': capabilities DDP_BACKEND_ONE_THREAD and DDP_BACKEND_CALLER_THREAD exclude each other");
    return Executor::Runner::kProgressThread;
}

// Adds what this rank contributes.
void count_sent(const Collective& c) {
    if (const auto& traffic = current_tag().traffic)
        traffic->sent.fetch_add(c.count * dtype_size(c.dtype), std::memory_order_relaxed);
}

}  // namespace

std::shared_ptr<Link> Link::create(const GroupConfig& config, const Links& earlier) {
    const ddp_backend* backend = find_backend(config.backend);
    std::shared_ptr<Link> group(new Link(config, find_meeting_place(config)), &Link::destroy);
    group->earlier_ = earlier;
    const auto& place = group->place_;
    if (place.world > 1)
        group->join(backend);
    else
        group->connect(backend);
    group->take_earlier();
    // A verdict that came while there was no transport yet found nothing to abort.
    if (auto verdict = group->verdict(); !verdict.ok()) group->on_verdict(verdict);
    log(LogLevel::kInfo, "group '", config.name, "': rank ", place.rank, " of ", place.world, ", backend ",
        group->backend_name());
    return group;
}

void Link::connect(const ddp_backend* backend) {
    Transport::Setup setup{
        place_.store, place_.prefix + "net/", config_.name,  config_.backend_options,           place_.rank,
        place_.world, config_.timeout_ms,     config_.flags, [this] { return broken_so_far(); }};
    Transport::Setup host_setup = setup;
    auto transport = std::make_shared<Transport>(backend, std::move(setup));
    std::shared_ptr<Transport> on_device = transport->has(DDP_BACKEND_CUDA) ? transport : nullptr;
    if (transport->has(DDP_BACKEND_DEVICE_ONLY)) {
        if (!on_device || transport->has(DDP_BACKEND_ONE_THREAD | DDP_BACKEND_CALLER_THREAD))
            fail(
                DDP_ERROR_INVALID_ARGUMENT, "backend '", transport->name(),
                "': capability DDP_BACKEND_DEVICE_ONLY needs DDP_BACKEND_CUDA, and excludes DDP_BACKEND_ONE_THREAD and "
                "DDP_BACKEND_CALLER_THREAD");
        host_setup.prefix = place_.prefix + "net/host/";
        host_setup.options = "";
        transport = std::make_shared<Transport>(nullptr, std::move(host_setup));
    }
    const bool answers =
        transport->has(DDP_BACKEND_INTERRUPTIBLE) && (!on_device || on_device->has(DDP_BACKEND_INTERRUPTIBLE));
    auto executor = Executor::start(
        runner_for(*transport), answers,
        [self = std::weak_ptr<Group>(weak_from_this()), this](const WaitTarget& waited_for) {
            const auto alive = self.lock();
            return alive ? interrupted(waited_for) : ErrorInfo{DDP_ERROR_ABORTED, "the group was freed"};
        });
    std::lock_guard lock(mutex_);
    transport_ = std::move(transport);
    on_device_ = std::move(on_device);
    executor_ = std::move(executor);
    watch_callbacks(executor_->waiting_callbacks());
}

std::shared_ptr<Link> Link::divide(std::int32_t color, std::int32_t key, const Links& earlier) {
    if (color < -1) fail(DDP_ERROR_INVALID_ARGUMENT, "color is ", color, "; it is at least 0, or -1 to join no group");
    in_call("ddp_group_split", [this] { require_unbroken(); });
    struct Choice {
        std::int32_t color, key, rank;
    };
    std::vector<Choice> choices(static_cast<std::size_t>(world()));
    choices[static_cast<std::size_t>(rank())] = {color, key, rank()};
    const ScopedPurpose scope(Purpose::kSplit);
    run({DDP_COLLECTIVE_ALLGATHER, nullptr, choices.data(), sizeof(Choice), DDP_U8});
    ++splits_;
    if (color < 0) return nullptr;

    GroupConfig config = config_;
    config.store = place_.store;
    config.name = str(config_.name, "/", color);
    // The same color may join other ranks in each split.
    config.prefix = str(place_.prefix, "split/", splits_, ".", color, "/");
    config.rank = 0;
    config.world = 0;
    for (const auto& other : choices) {
        if (other.color != color) continue;
        ++config.world;
        if (std::pair(other.key, other.rank) < std::pair(key, rank())) ++config.rank;
    }
    return create(config, earlier);
}

// The last owner may be what a verdict lets go of, on the monitor's own thread, for whose end the destructor waits.
void Link::destroy(Link* link) {
    const bool own_thread =
        (link->monitor_ && link->monitor_->on_own_thread()) || (link->watch_ && link->watch_->on_own_thread());
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
    if (monitor_) monitor_->leave();
    // A rank that is done may not disturb the others, who may still be reading its last bytes: abort only what would
    // not end.
    if (executor_ && !executor_->idle()) abort_transports();
    if (executor_) executor_->stop(left);
    if (watch_) end_enqueued();
    monitor_.reset();  // its callbacks use the members above
}

std::shared_ptr<Store> Link::store() {
    if (place_.store) return place_.store;
    std::lock_guard lock(mutex_);
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

WorkPtr Link::submit(const Collective& collective) {
    validate(collective);
    check();
    interrupt::refuse_inside_check();
    count_sent(collective);
    // The operation runs while the executor lives, which the group's destructor ends first.
    const WaitTarget target{current_tag().step, current_tag().bucket, collective.kind};
    auto work = executor_->submit(std::make_unique<LinkOperation>(*this, collective, current_tag()), target);
    if (!is_cpu(collective.device)) work->enqueued_on(current_tag().stream, config_.timeout_ms);
    return work;
}

// Who waits needs no work to hold, if nothing else is under way.
void Link::perform(const Collective& collective) {
    validate(collective);
    check();
    interrupt::refuse_inside_check();
    LinkOperation operation(*this, collective, current_tag());
    const auto result = executor_->run_now(operation);
    if (!result) return Group::perform(collective);
    if (!result->ok()) throw Error(*result);
    count_sent(collective);
}

void Group::run(const Collective& collective) {
    link(0)->perform(collective);
}

void Group::perform(const Collective& collective) {
    const auto work = submit(collective);
    work->wait(std::nullopt);
    if (!work->result().ok()) throw Error(work->result());
}

void Group::check_in_wait(const char* waited_for) {
    check();
    if (interrupt::wanted()) throw Error(break_everywhere(interruption(rank(), waited_for)));
}

void Link::validate(const Collective& c) const {
    if (dtype_size(c.dtype) == 0) fail(DDP_ERROR_INVALID_ARGUMENT, "dtype ", c.dtype, " is unknown");
    if (!c.recv && c.count > 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, c.kind == DDP_COLLECTIVE_BROADCAST ? "buffer" : "recv",
             " is NULL, but count is ", c.count);
    if (c.root < 0 || c.root >= world())
        fail(DDP_ERROR_INVALID_ARGUMENT, "root is ", c.root, ", but the ranks are 0 to ", world() - 1);
    if (c.count > SIZE_MAX / 16 / static_cast<std::size_t>(world()))
        fail(DDP_ERROR_INVALID_ARGUMENT, "count ", c.count, " is too large");
    if (c.kind == DDP_COLLECTIVE_REDUCE_SCATTER && !c.send && c.count > 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "send is NULL: reduce_scatter does not work in place");
    if (!is_cpu(c.device)) {
        const auto& stream = current_tag().stream;
        if (!stream || !same_device(stream->device(), c.device))
            fail(DDP_ERROR_INTERNAL, "a collective on ", device_name(c.device), " without a stream of that device");
    }
    if (!reduces(c.kind)) return;
    if (c.op < DDP_SUM || c.op > DDP_MAX) fail(DDP_ERROR_INVALID_ARGUMENT, "op ", c.op, " is unknown");
    if (!cpu::can_reduce(c.dtype, c.op == DDP_AVG ? DDP_SUM : c.op))
        fail(DDP_ERROR_UNSUPPORTED, "this op cannot be applied to ", dtype_name(c.dtype));
}

ErrorInfo Link::break_everywhere(const ErrorInfo& error) {
    const auto alive = weak_from_this().lock();  // what fails now may own the group
    ErrorInfo agreed = error;
    if (monitor_)
        agreed = error.code == DDP_ERROR_INTERRUPTED ? monitor_->report_briefly(error) : monitor_->report(error);
    on_verdict(agreed);
    return verdict();
}

ErrorInfo Link::interrupted_joining() const {
    return interruption(rank(), str("the other ranks of group '", config_.name, "'"));
}

ErrorInfo Link::interrupted(const WaitTarget& waited_for) {
    return break_everywhere(interruption(rank(), describe(waited_for), waited_for.bucket, waited_for.step));
}

ErrorInfo Link::adopt(const ErrorInfo& verdict, const Link& from) {
    const auto alive = weak_from_this().lock();
    const bool store_silent = place_.store == from.place_.store && from.monitor_ && from.monitor_->store_silent();
    on_verdict(monitor_ ? monitor_->adopt(verdict, store_silent) : verdict);
    return this->verdict();
}

void Link::on_verdict(const ErrorInfo& error) {
    std::shared_ptr<Transport> transport, on_device;
    std::shared_ptr<Executor> executor;
    std::shared_ptr<Arbiter> arbiter;
    {
        std::lock_guard lock(mutex_);
        arbiter = arbiter_.lock();
        if (!arbiter && verdict_.ok()) verdict_ = error;
        transport = transport_;
        on_device = on_device_;
        executor = executor_;
    }
    // While joining there may be nothing to stop yet; create() looks again when there is.
    if (transport) transport->abort();
    if (arbiter) take_verdict(arbiter->decide(*this, error));
    set_broken();
    if (executor) executor->poison(verdict());
    // Streams go on then, without a result: everybody who waits for one must be able to see why.
    if (on_device) on_device->abort();
}

void Link::take_verdict(const ErrorInfo& decided) {
    std::lock_guard lock(mutex_);
    if (verdict_.ok()) verdict_ = decided;
}

bool Link::set_arbiter(const std::shared_ptr<Arbiter>& arbiter) {
    std::lock_guard lock(mutex_);
    if (!arbiter_.expired()) return false;
    arbiter_ = arbiter;
    return true;
}

bool Link::has_arbiter() const {
    std::lock_guard lock(mutex_);
    return !arbiter_.expired();
}

ErrorInfo Link::verdict() const {
    std::lock_guard lock(mutex_);
    return verdict_;
}

std::shared_ptr<std::byte> Link::allocate(std::size_t bytes) {
    if (void* memory = transport_->allocate(bytes, {DDP_DEVICE_CPU, 0}))
        return {static_cast<std::byte*>(memory), [owner = transport_](std::byte* m) { owner->deallocate(m); }};
    return allocate_zeroed(bytes);
}

}  // namespace libddp
