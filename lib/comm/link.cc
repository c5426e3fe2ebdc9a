#include "comm/link.h"

#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "comm/registry.h"
#include "comm/signature.h"
#include "device/dtype.h"
#include "device/kernels.h"
#include "device/memory.h"
#include "util/log.h"
#include "util/version.h"

namespace libddp {
namespace {

// How long a failing rank waits in the store before it looks again whether the group has broken.
constexpr std::int64_t kStoreSliceMs = 200;
// How long the store has to answer a rank that wants to know who is missing.
constexpr std::int64_t kStoreAnswerMs = 1'000;

std::string identity() {
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    return str("pid ", getpid(), " on ", host);
}

// What this rank contributes.
std::uint64_t input_bytes(const Collective& c) {
    return c.count * dtype_size(c.dtype);
}

bool reduces(ddp_collective_kind kind) {
    return kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_REDUCE_SCATTER;
}

}  // namespace

std::shared_ptr<Link> Link::create(const GroupConfig& config) {
    const ddp_backend* backend = find_backend(config.backend);
    std::shared_ptr<Link> group(new Link(config, find_meeting_place(config)));
    const auto& place = group->place_;
    if (place.world > 1) group->join();

    Transport::Setup setup{place.store, place.prefix + "net/", config.name,       config.backend_options,
                           place.rank,  place.world,           config.timeout_ms, config.flags,
                           nullptr};
    setup.verdict = [raw = group.get()] { return raw->verdict(); };
    try {
        auto transport = std::make_shared<Transport>(backend, std::move(setup));
        auto executor = Executor::start(transport->has(DDP_BACKEND_ONE_THREAD));
        std::lock_guard lock(group->mutex_);
        group->transport_ = std::move(transport);
        group->executor_ = std::move(executor);
        group->watch_callbacks(group->executor_->waiting_callbacks());
    } catch (const Error& error) {
        if (!group->monitor_) throw;
        throw Error(group->monitor_->resolve(error.info(), str("joining group '", config.name, "'")));
    }
    // A verdict that came while there was no transport yet found nothing to abort.
    if (auto verdict = group->verdict(); !verdict.ok()) group->on_verdict(verdict);
    log(LogLevel::kInfo, "group '", config.name, "': rank ", place.rank, " of ", place.world, ", backend ",
        backend->name, config.backend == "auto" ? " (auto)" : "");
    return group;
}

std::shared_ptr<Link> Link::divide(std::int32_t color, std::int32_t key) {
    if (color < -1) fail(DDP_ERROR_INVALID_ARGUMENT, "color is ", color, "; it is at least 0, or -1 to join no group");
    struct Choice {
        std::int32_t color, key, rank;
    };
    std::vector<Choice> choices(static_cast<std::size_t>(world()));
    choices[static_cast<std::size_t>(rank())] = {color, key, rank()};
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
    return create(config);
}

Link::~Link() {
    ErrorInfo left{DDP_ERROR_ABORTED, "the group was freed"};
    if (monitor_) monitor_->leave();
    // A rank that is done may not disturb the others, who may still be reading its last bytes: abort only what would
    // not end.
    if (executor_ && !executor_->idle()) transport_->abort();
    if (executor_) executor_->stop(left);
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

// Claims this rank, starts the monitor, compares options, and waits until everyone is here.
void Link::join() {
    auto& store = *place_.store;
    std::string me = str(identity(), " #", std::random_device{}());
    auto key = place_.prefix + str("rank/", place_.rank);
    auto holder = store.compare_set(key, "", me);
    if (holder != me)
        fail(DDP_ERROR_ALREADY_EXISTS, "rank ", place_.rank, " of group '", config_.name, "' at ", store.describe(),
             " is taken already by ", holder.substr(0, holder.find(" #")), ": start each rank once");
    Monitor::Config config{place_.store, place_.prefix, place_.rank, place_.world, place_.store_rank, identity()};
    monitor_ = std::make_unique<Monitor>(std::move(config), [this](const ErrorInfo& verdict) { on_verdict(verdict); });
    try {
        check_same_options();
        wait_for_all();
    } catch (const Error& error) {
        // The store went with the rank that runs it. What ended that rank is the cause.
        if (error.info().code != DDP_ERROR_UNAVAILABLE) throw;
        throw Error(monitor_->resolve(error.info(), str("joining group '", config_.name, "'")));
    }
}

void Link::check_same_options() {
    struct Field {
        const char* name;
        std::string value;
    };
    const Field fields[] = {
        {"libddp version", kVersion},
        {"world_size", std::to_string(place_.world)},
        {"backend", find_backend(config_.backend)->name},
        {"backend_options", config_.backend_options},
        {"flags", std::to_string(config_.flags)},
        {"round_robin", std::to_string(std::max(config_.round_robin, 1u))},
    };
    for (const auto& field : fields) {
        auto key = place_.prefix + "option/" + field.name;
        // compare_set cannot tell an empty value from an absent key, so values get a mark.
        std::string mine = "=" + field.value;
        std::string first = place_.store->compare_set(key, "", str(mine, "\n", place_.rank));
        auto end = first.rfind('\n');
        if (first.substr(0, end) == mine) continue;
        ErrorInfo error{DDP_ERROR_MISMATCH, str("group '", config_.name, "': rank ", first.substr(end + 1), " has ",
                                                field.name, " '", first.substr(1, end - 1), "', but rank ", place_.rank,
                                                " has '", field.value, "'; all ranks must give the same")};
        throw Error(monitor_->report(error));
    }
}

void Link::wait_for_all() {
    auto& store = *place_.store;
    const auto all_key = place_.prefix + "all";
    if (store.add(place_.prefix + "joined", 1) == place_.world) store.set(all_key, "1");
    auto deadline = Deadline::after_ms(config_.timeout_ms);
    for (;;) {
        if (auto broken = verdict(); !broken.ok()) throw Error(broken);
        try {
            store.wait({all_key}, std::min(kStoreSliceMs, std::max<std::int64_t>(1, deadline.remaining_ms())));
            return;
        } catch (const Error& error) {
            if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        }
        if (!deadline.expired()) continue;
        if (!store.answers(kStoreAnswerMs))
            throw Error(
                monitor_->resolve({DDP_ERROR_TIMEOUT, str("the store at ", store.describe(), " does not answer")},
                                  str("joining group '", config_.name, "'")));
        std::string missing;
        std::int32_t first_missing = -1;
        for (std::int32_t r = 0; r < place_.world; ++r) {
            if (store.check({place_.prefix + str("rank/", r)})) continue;
            if (first_missing < 0) first_missing = r;
            missing += str(missing.empty() ? "" : ", ", r);
        }
        throw Error(monitor_->report({DDP_ERROR_TIMEOUT,
                                      str("group '", config_.name, "' at ", store.describe(), ": of ", place_.world,
                                          " ranks these did not come within ", config_.timeout_ms, " ms: ", missing),
                                      first_missing}));
    }
}

WorkPtr Link::submit(const Collective& collective) {
    validate(collective);
    check();
    if (const auto& counter = current_tag().sent_bytes)
        counter->fetch_add(input_bytes(collective), std::memory_order_relaxed);
    // The operation runs while the executor lives, which the group's destructor ends first.
    return executor_->submit(
        [this, collective, tag = current_tag()] { return execute(collective, next_sequence_++, tag); });
}

void Group::run(const Collective& collective) {
    auto work = link(0)->submit(collective);
    work->wait(std::nullopt);
    if (!work->result().ok()) throw Error(work->result());
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
    if (!reduces(c.kind)) return;
    if (c.op < DDP_SUM || c.op > DDP_MAX) fail(DDP_ERROR_INVALID_ARGUMENT, "op ", c.op, " is unknown");
    if (!cpu::can_reduce(c.dtype, c.op == DDP_AVG ? DDP_SUM : c.op))
        fail(DDP_ERROR_UNSUPPORTED, "this op cannot be applied to ", dtype_name(c.dtype));
}

// One collective on the wire: compare, scale, run. Runs with the executor's turn.
ErrorInfo Link::execute(const Collective& c, std::int64_t sequence, const OpTag& tag) noexcept try {
    if (auto broken = verdict(); !broken.ok()) return broken;
    Signature mine{tag.plan, tag.step, sequence, c.count, tag.bucket, c.kind, c.dtype, c.op, c.root, 0};
    if (monitor_) monitor_->set_progress(sequence + 1);
    try {
        const bool unchecked = (config_.flags & DDP_GROUP_NO_MATCH_CHECK) && !transport_->has(DDP_BACKEND_NEEDS_MATCH);
        if (world() > 1 && !unchecked) {
            Signature theirs{};
            std::int32_t other = -1;
            if (!transport_->match(&mine, &theirs, sizeof mine, config_.timeout_ms, &other))
                return break_everywhere({DDP_ERROR_MISMATCH,
                                         describe_mismatch(mine, rank(), theirs, other, tag.label ? *tag.label : ""),
                                         other, -1, tag.bucket, tag.step});
        }
        ddp_collective op{sizeof(ddp_collective),   c.kind, c.dtype, c.op, c.root,
                          c.send ? c.send : c.recv, c.recv, c.count, 1.0,  config_.timeout_ms,
                          {DDP_DEVICE_CPU, 0},      nullptr};
        const std::size_t item = dtype_size(c.dtype);
        if (c.kind == DDP_COLLECTIVE_ALLGATHER && !c.send)
            op.send = static_cast<const std::byte*>(c.recv) + item * c.count * static_cast<std::size_t>(rank());
        run_scaled(op);
        return {};
    } catch (const Error& error) {
        ErrorInfo info = error.info();
        info.bucket = tag.bucket;
        info.step = tag.step;
        return break_everywhere(monitor_ ? monitor_->resolve(info, describe(mine)) : info);
    }
} catch (const std::exception& error) {
    return {DDP_ERROR_INTERNAL, str("a collective failed: ", error.what())};
}

// DDP_AVG is a sum with a scale. A backend that cannot apply it gets values divided beforehand, which keeps sums of low
// precision finite; integers, which that would ruin, and reduce_scatter, whose input is not ours to change, are divided
// afterwards.
void Link::run_scaled(ddp_collective op) {
    double after = 1;
    if (reduces(op.kind) && op.op == DDP_AVG) {
        op.op = DDP_SUM;
        const double scale = 1.0 / world();
        if (fuses_scale()) {
            op.scale = scale;
        } else if (op.kind == DDP_COLLECTIVE_ALLREDUCE && is_floating(op.dtype)) {
            cpu::scale_copy(op.recv, op.send, op.count, op.dtype, scale);
            op.send = op.recv;
        } else {
            after = scale;
        }
    }
    transport_->run(op);
    if (after != 1) cpu::scale_copy(op.recv, op.recv, op.count, op.dtype, after);
}

ErrorInfo Link::break_everywhere(const ErrorInfo& error) {
    ErrorInfo agreed = monitor_ ? monitor_->report(error) : error;
    on_verdict(agreed);
    return verdict();
}

ErrorInfo Link::adopt(const ErrorInfo& verdict, const Link& from) {
    const bool store_silent = place_.store == from.place_.store && from.monitor_ && from.monitor_->store_silent();
    on_verdict(monitor_ ? monitor_->adopt(verdict, store_silent) : verdict);
    return this->verdict();
}

void Link::on_verdict(const ErrorInfo& error) {
    std::shared_ptr<Transport> transport;
    std::shared_ptr<Executor> executor;
    std::shared_ptr<Arbiter> arbiter;
    {
        std::lock_guard lock(mutex_);
        arbiter = arbiter_.lock();
        if (!arbiter && verdict_.ok()) verdict_ = error;
        transport = transport_;
        executor = executor_;
    }
    // While joining there may be nothing to stop yet; create() looks again when there is.
    if (transport) transport->abort();
    if (arbiter) take_verdict(arbiter->decide(*this, error));
    set_broken();
    if (executor) executor->poison(verdict());
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
    if (void* memory = transport_->allocate(bytes))
        return {static_cast<std::byte*>(memory), [owner = transport_](std::byte* m) { owner->deallocate(m); }};
    return allocate_zeroed(bytes);
}

}  // namespace libddp
