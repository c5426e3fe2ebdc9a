#include "comm/link.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "comm/registry.h"
#include "comm/signature.h"
#include "device/memory.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"
#include "util/version.h"

namespace libddp {
namespace {

// How long a failing rank waits in the store before it looks again whether the group has broken.
constexpr std::int64_t kStoreSliceMs = 200;
// How long the store has to answer a rank that wants to know who is missing.
constexpr std::int64_t kStoreAnswerMs = 1'000;
// How long ranks that chose differently keep the store for one that comes late. Some load a framework first.
constexpr std::int64_t kLatecomerMs = 10'000;
// When a rank that waits for others says whom it waits for, and how often again.
constexpr std::int64_t kFirstWordMs = 5'000;
constexpr std::int64_t kNextWordMs = 30'000;
// How long operations that are enqueued on a device have to end by themselves when the group is freed, and after an abort.
constexpr std::int64_t kDrainMs = 400;
// How long the thread that computes looks for the other ranks. Ranks that compute the same come within this, and then stay
// in step: each reduces a part of every bucket. One that gave up early would run ahead and leave all reducing to the other.
// A rank that is early has to wait at the end of the step anyway.
constexpr std::int64_t kPatienceNs = 1'000'000;

std::atomic<int> blame_signal{0};

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
void count_sent(const Collective& c, const OpTag& tag) {
    if (tag.traffic) tag.traffic->sent.fetch_add(c.count * dtype_size(c.dtype), std::memory_order_relaxed);
}

// As the program writes them; those that ranks need not agree on are not in a group's configuration.
std::string flags_text(std::uint32_t flags) {
    std::string text;
    for (const auto& [flag, name] : {std::pair{std::uint32_t{DDP_GROUP_DETERMINISTIC}, "DDP_GROUP_DETERMINISTIC"},
                                     std::pair{std::uint32_t{DDP_GROUP_NO_MATCH_CHECK}, "DDP_GROUP_NO_MATCH_CHECK"}})
        if (flags & flag) text += str(text.empty() ? "" : " | ", name);
    return text.empty() ? "none" : text;
}

bool reduces(ddp_collective_kind kind) {
    return kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_REDUCE_SCATTER;
}

}  // namespace

void set_blame_signal(int signal) {
    blame_signal.store(signal, std::memory_order_relaxed);
}

std::shared_ptr<Link> Link::create(const GroupConfig& config, const Links& earlier) {
    const ddp_backend* backend = find_backend(config.backend);
    std::shared_ptr<Link> link(new Link(config, find_meeting_place(config)), &Link::destroy);
    link->earlier_ = earlier;
    const auto& place = link->place_;
    if (place.world > 1)
        link->join(backend);
    else
        link->connect(backend);
    link->take_earlier();
    // A verdict that came while there was no transport yet found nothing to abort.
    if (auto verdict = link->verdict(); !verdict.ok()) link->on_verdict(verdict);
    link->recorder_.joined();
    log(LogLevel::kInfo, "group '", config.name, "': rank ", place.rank, " of ", place.world, ", backend ",
        link->backend_name());
    return link;
}

void Link::connect(const ddp_backend* backend) {
    Transport::Setup setup{
        place_.store, place_.prefix + "net/", config_.name,  config_.backend_options,           place_.rank,
        place_.world, config_.timeout_ms,     config_.flags, [this] { return broken_so_far(); }};
    Transport::Setup host_setup = setup;
    const record::Connecting connecting(recorder_);
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

// Takes this rank's place, compares options, waits until everyone is here, and connects.
void Link::join(const ddp_backend* backend) {
    interrupt::refuse_inside_check();
    const auto deadline = Deadline::after_ms(config_.timeout_ms);
    Monitor::Config config{place_.store, place_.prefix,     place_.rank,
                           place_.world, place_.store_rank, process_text(),
                           config_.name, recorder_,         static_cast<bool>(config_.absent)};
    monitor_ = std::make_unique<Monitor>(std::move(config), [this](const ErrorInfo& verdict) { on_verdict(verdict); });
    try {
        monitor_->start();
        check_same_options();
        wait_for_all(deadline);
        connect(backend);
    } catch (...) {
        throw Error(join_failed(caught(), deadline));
    }
}

// The error that all ranks report for a failure here.
ErrorInfo Link::join_failed(ErrorInfo error, const Deadline& deadline) {
    if (error.code == DDP_ERROR_ALREADY_EXISTS) return error;
    if (is_interruption(error)) return monitor_->report_briefly(interrupted_joining());
    for (const auto& link : take_earlier())
        if (auto broken = link->verdict(); !broken.ok()) return adopt(broken, *link);
    const bool here = error.rank < 0 && !may_be_an_echo(error.code);
    if (here) error = could_not_join(place_.rank, config_.name, std::move(error));
    const ErrorInfo agreed = monitor_->resolve(error, joining());
    // Without the store, who comes late would not learn why nobody is there.
    if (place_.store_may_end && (here || agreed.code == DDP_ERROR_MISMATCH || agreed.code == DDP_ERROR_LIMIT))
        monitor_->leave_last(std::clamp<std::int64_t>(deadline.remaining_ms(), 1, kLatecomerMs));
    return agreed;
}

void Link::check_same_options() {
    struct Field {
        const char* name;
        std::string value;
    };
    const Field fields[] = {
        {"libddp version", kVersion},         {"world_size", std::to_string(place_.world)},
        {"backend", config_.backend},         {"backend_options", config_.backend_options},
        {"flags", flags_text(config_.flags)}, {"round_robin", std::to_string(std::max(config_.round_robin, 1u))},
    };
    for (const auto& field : fields) {
        auto key = place_.prefix + "option/" + field.name;
        // compare_set cannot tell an empty value from an absent key, so values get a mark.
        std::string mine = "=" + field.value;
        std::string first = place_.store->compare_set(key, "", str(mine, "\n", place_.rank));
        auto end = first.rfind('\n');
        if (first.substr(0, end) == mine) continue;
        ErrorInfo error{DDP_ERROR_MISMATCH,
                        str("group '", config_.name, "': rank ", first.substr(end + 1), " has ", field.name, " '",
                            first.substr(1, end - 1), "', but rank ", place_.rank, " has '", field.value,
                            "'; all ranks must give the same"),
                        place_.rank};
        throw Error(monitor_->report(error));
    }
}

void Link::wait_for_all(const Deadline& deadline) {
    auto& store = *place_.store;
    const auto all_key = place_.prefix + "all";
    if (store.add(place_.prefix + "joined", 1) == place_.world) store.set(all_key, "1");
    log(LogLevel::kInfo, "group '", config_.name, "' at ", store.describe(), ": rank ", place_.rank, " of ",
        place_.world, " is here and waits for the others");
    auto next_word = Deadline::after_ms(kFirstWordMs);
    for (;;) {
        if (auto broken = broken_so_far(); !broken.ok()) throw Error(broken);
        try {
            store.wait({all_key}, std::min(kStoreSliceMs, std::max<std::int64_t>(1, deadline.remaining_ms())));
            return;
        } catch (const Error& error) {
            if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        }
        if (ErrorInfo absent = config_.absent ? config_.absent() : ErrorInfo{}; !absent.ok())
            throw Error(monitor_->report(absent));
        if (deadline.expired()) break;
        if (!next_word.expired()) continue;
        say_who_is_missing();
        next_word = Deadline::after_ms(kNextWordMs);
    }
    if (!store.answers(kStoreAnswerMs)) fail(DDP_ERROR_TIMEOUT, "the store at ", store.describe(), " does not answer");
    const auto missing = missing_ranks(0, place_.world);
    // All came, but not all went on.
    if (missing.empty()) fail(DDP_ERROR_TIMEOUT, "not every rank was ready within ", config_.timeout_ms, " ms");
    const ErrorInfo absent{DDP_ERROR_TIMEOUT,
                           str("group '", config_.name, "' at ", store.describe(), ": of ", place_.world,
                               " ranks these did not come within ", config_.timeout_ms, " ms: ", ranks_text(missing)),
                           missing.front()};
    // Some of them may be waiting for others in the link before, where all have a monitor that answers.
    if (!earlier_.empty()) throw Error(earlier_.back()->monitor_->resolve(absent, joining()));
    throw Error(monitor_->report(absent));
}

std::vector<std::int32_t> Link::missing_ranks(std::int32_t first, std::int32_t end) const {
    std::vector<std::int32_t> missing;
    for (std::int32_t r = first; r < end; ++r)
        if (!monitor_->has_come(r)) missing.push_back(r);
    return missing;
}

// One rank speaks for all: the lowest that is here.
void Link::say_who_is_missing() const {
    for (std::int32_t r = 0; r < place_.rank; ++r)
        if (monitor_->has_come(r)) return;
    const auto missing = missing_ranks(0, place_.world);
    if (missing.empty()) return;
    log(LogLevel::kWarn, "group '", config_.name, "' at ", place_.store->describe(), ": rank ", place_.rank, " of ",
        place_.world, " still waits for ", ranks_text(missing), "; the timeout is ", config_.timeout_ms, " ms");
}

// The error that broke this link or, while it is joined, an earlier one of its group.
ErrorInfo Link::broken_so_far() const {
    Links earlier;
    {
        std::lock_guard lock(mutex_);
        if (!verdict_.ok()) return verdict_;
        earlier = earlier_;
    }
    for (const auto& link : earlier)
        if (auto broken = link->verdict(); !broken.ok()) return broken;
    return {};
}

Link::Links Link::take_earlier() {
    std::lock_guard lock(mutex_);
    return std::exchange(earlier_, {});
}

std::string Link::joining() const {
    return str("joining group '", config_.name, "'");
}

std::shared_ptr<Link> Link::divide(std::int32_t color, std::int32_t key, const OpTag& tag, const Links& earlier) {
    if (color < -1) fail(DDP_ERROR_INVALID_ARGUMENT, "color is ", color, "; it is at least 0, or -1 to join no group");
    in_call("ddp_group_split", [this] { require_unbroken(); });
    struct Choice {
        std::int32_t color, key, rank;
    };
    std::vector<Choice> choices(static_cast<std::size_t>(world()));
    choices[static_cast<std::size_t>(rank())] = {color, key, rank()};
    run({DDP_COLLECTIVE_ALLGATHER, nullptr, choices.data(), sizeof(Choice), DDP_U8}, tag.with(Purpose::kSplit));
    ++splits_;
    if (color < 0) return nullptr;

    GroupConfig config = config_;
    config.store = place_.store;
    config.absent = nullptr;
    config.counts = counts_;
    config.name = str(config_.name, "/", color);
    // The same color may join other ranks in each split.
    config.prefix = str(place_.prefix, kKeysOfParts, splits_, ".", color, "/");
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
    if (transport_) transport_->leave();
    if (on_device_ && on_device_ != transport_) on_device_->leave();
    recorder_.write({.kind = record::EventKind::kLeft});
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

// One collective on its way: numbered, compared, scaled, run. Every function runs with the turn of the link's executor.
class LinkOperation final : public Operation {
public:
    LinkOperation(Link& link, const Collective& collective, OpTag tag)
        : link_(link), collective_(collective), tag_(std::move(tag)) {
        if (on_device()) submitted_ = tag_.stream->record();
    }

    bool ready() override;
    ErrorInfo run() noexcept override;

private:
    bool on_device() const { return !is_cpu(collective_.device); }
    void begin();
    bool ready_on_device();
    ErrorInfo perform();
    void place_division();
    void run_divided();
    record::Entry entry(record::EventKind kind) const;
    ErrorInfo disagree(std::int32_t other);
    ErrorInfo resolve(ErrorInfo error);
    // An object that fails with this operation may own the group.
    void keep_link() { kept_ = link_.weak_from_this().lock(); }

    Link& link_;
    std::shared_ptr<Group> kept_;
    const Collective collective_;
    const OpTag tag_;
    EventPtr submitted_;  // on a device: where the tag's stream was then
    bool begun_ = false;
    std::int64_t begun_ns_ = 0;
    bool checked_ = false;  // ranks compare what they are about to do
    Division division_;
    Signature mine_{}, theirs_{};
    ddp_collective op_{};
    std::uint64_t copied_ = 0;
};

WorkPtr Link::submit(const Collective& collective, OpTag tag) {
    validate(collective, tag);
    check();
    interrupt::refuse_inside_check();
    count_sent(collective, tag);
    counts_->given.fetch_add(1, std::memory_order_acq_rel);
    // The operation runs while the executor lives, which the group's destructor ends first.
    const WaitTarget target{tag.step, tag.bucket, collective.kind};
    const StreamPtr stream = tag.stream;
    auto work = executor_->submit(std::make_unique<LinkOperation>(*this, collective, std::move(tag)), target);
    if (!is_cpu(collective.device)) work->enqueued_on(stream, config_.timeout_ms);
    return work;
}

// A blocking call with nothing else in flight needs no work handle.
void Link::perform(const Collective& collective, const OpTag& tag) {
    validate(collective, tag);
    check();
    interrupt::refuse_inside_check();
    LinkOperation operation(*this, collective, tag);
    const auto result = executor_->run_now(operation);
    if (!result) return Group::perform(collective, tag);
    counts_->given.fetch_add(1, std::memory_order_acq_rel);
    if (!result->ok()) throw Error(*result);
    count_sent(collective, tag);
}

void Group::run(const Collective& collective, const OpTag& tag) {
    link(0)->perform(collective, tag);
}

void Group::perform(const Collective& collective, const OpTag& tag) {
    const auto work = submit(collective, tag);
    work->wait(std::nullopt);
    if (!work->result().ok()) throw Error(work->result());
}

void Group::check_in_wait(const char* waited_for) {
    check();
    if (interrupt::wanted()) throw Error(break_everywhere(interruption(rank(), waited_for)));
}

void Link::validate(const Collective& c, const OpTag& tag) const {
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
        if (!tag.stream || !same_device(tag.stream->device(), c.device))
            fail(DDP_ERROR_INTERNAL, "a collective on ", device_name(c.device), " without a stream of that device");
    }
    if (!reduces(c.kind)) return;
    if (c.op < DDP_SUM || c.op > DDP_MAX) fail(DDP_ERROR_INVALID_ARGUMENT, "op ", c.op, " is unknown");
    if (!cpu::can_reduce(c.dtype, c.op == DDP_AVG ? DDP_SUM : c.op))
        fail(DDP_ERROR_UNSUPPORTED, "this op cannot be applied to ", dtype_name(c.dtype));
}

// The number is given when the turn comes, and so counts the same on every rank.
void LinkOperation::begin() {
    if (begun_) return;
    begun_ = true;
    const Collective& c = collective_;
    const std::int64_t sequence = link_.next_sequence_++;
    mine_ = {tag_.plan, tag_.step, tag_.synced_steps, sequence,     c.count,      tag_.bucket, c.kind,   c.dtype,
             c.op,      c.root,    c.device.kind,     tag_.purpose, tag_.context, tag_.frozen, tag_.hook};
    if (link_.monitor_) link_.monitor_->begins(mine_);
    const bool unchecked =
        (link_.config_.flags & DDP_GROUP_NO_MATCH_CHECK) && !link_.transport_->has(DDP_BACKEND_NEEDS_MATCH);
    checked_ = link_.world() > 1 && !unchecked;

    if (link_.recorder_) {
        record::Entry began = entry(record::EventKind::kOperationBegin);
        began.time_ns = begun_ns_ = record::now_ns();
        link_.recorder_.write(began);
    }

    op_.struct_size = sizeof op_;
    op_.kind = c.kind;
    op_.dtype = c.dtype;
    op_.op = c.op;
    op_.root = c.root;
    op_.send = c.send ? c.send : c.recv;
    op_.recv = c.recv;
    op_.count = c.count;
    op_.scale = 1;
    op_.timeout_ms = link_.config_.timeout_ms;
    op_.device = c.device;
    op_.copied_bytes = &copied_;
    if (c.kind == DDP_COLLECTIVE_ALLGATHER && !c.send)
        op_.send = static_cast<const std::byte*>(c.recv) +
                   dtype_size(c.dtype) * c.count * static_cast<std::size_t>(link_.rank());
    if (reduces(c.kind) && c.op == DDP_AVG) place_division();
    // Operations of a device's own backend are compared before, on the host.
    if (checked_ && link_.transport_->has(DDP_BACKEND_COMPARES) && !(on_device() && link_.on_device_)) {
        theirs_ = mine_;
        op_.signature = &mine_;
        op_.theirs = &theirs_;
        op_.signature_size = sizeof mine_;
    }
}

// The only place that decides where a mean is divided. DDP_AVG is a sum with a scale. A backend that cannot apply it gets values
// that are divided before, which keeps sums of low precision finite. Division after the sum is for integers, which division before
// would ruin, and for reduce_scatter, whose input belongs to the program.
void LinkOperation::place_division() {
    const bool fuses = link_.transport_for(collective_.device.kind).has(DDP_BACKEND_FUSES_SCALE);
    const bool before = collective_.kind == DDP_COLLECTIVE_ALLREDUCE && is_floating(collective_.dtype);
    op_.op = DDP_SUM;
    (fuses ? op_.scale : before ? division_.before : division_.after) = 1.0 / link_.world();
}

bool LinkOperation::ready() {
    if (on_device()) return ready_on_device();
    if (!link_.transport_->has_ready()) return false;
    begin();
    if (division_.before != 1 || division_.after != 1) return false;
    try {
        return link_.transport_->ready(op_, kPatienceNs);
    } catch (const std::exception&) {
        return false;  // run() fails in the same way, and says why
    }
}

// Nothing to wait for: at once, in order with what the calling thread enqueues before and after.
bool LinkOperation::ready_on_device() {
    begin();
    return !checked_ && (link_.on_device_ || link_.world() == 1);
}

record::Entry LinkOperation::entry(record::EventKind kind) const {
    return {.kind = kind,
            .step = tag_.step,
            .bucket = tag_.bucket,
            .bytes = collective_.count * dtype_size(collective_.dtype),
            .sequence = mine_.sequence,
            .detail = record::operation_detail(collective_.kind, static_cast<std::int32_t>(tag_.purpose)),
            .since_ns = begun_ns_};
}

ErrorInfo LinkOperation::run() noexcept try {
    if (link_.broken()) return link_.verdict();
    begin();
    ErrorInfo result = perform();
    if (link_.monitor_) link_.monitor_->ends();
    if (link_.recorder_) {
        record::Entry ended = entry(record::EventKind::kOperationEnd);
        ended.param = result.code;
        link_.recorder_.write(ended);
    }
    if (!result.ok()) link_.counts_->failed.fetch_add(1, std::memory_order_acq_rel);
    link_.counts_->ended.fetch_add(1, std::memory_order_acq_rel);
    return result;
} catch (...) {
    return caught();
}

ErrorInfo LinkOperation::perform() {
    try {
        if (checked_ && !op_.signature) {
            std::int32_t other = -1;
            if (!link_.transport_->match(&mine_, &theirs_, sizeof mine_, op_.timeout_ms, &other))
                return disagree(other);
        }
        run_divided();
        if (tag_.traffic) tag_.traffic->copied.fetch_add(copied_, std::memory_order_relaxed);
        return {};
    } catch (...) {
        return resolve(caught());
    }
}

void LinkOperation::run_divided() {
    if (on_device())
        return link_.path(collective_.device)
            .run(op_, division_,
                 {*tag_.stream, *submitted_, tag_.enqueued ? tag_.enqueued : tag_.memory, describe(mine_)});
    if (division_.before != 1) {
        cpu::scale_copy(op_.recv, op_.send, op_.count, op_.dtype, division_.before);
        op_.send = op_.recv;
    }
    link_.transport_->run(op_);
    if (division_.after != 1) cpu::scale_copy(op_.recv, op_.recv, op_.count, op_.dtype, division_.after);
}

ErrorInfo LinkOperation::disagree(std::int32_t other) {
    keep_link();
    return link_.break_everywhere({DDP_ERROR_MISMATCH,
                                   describe_mismatch(mine_, link_.rank(), theirs_, other, tag_.label ? *tag_.label : "",
                                                     [this](std::int32_t context, std::int32_t param) {
                                                         return link_.param_name(context, param);
                                                     }),
                                   other, -1, tag_.bucket, tag_.step});
}

ErrorInfo LinkOperation::resolve(ErrorInfo error) {
    keep_link();
    // A backend may find that ranks differ in something else, and then leaves theirs_ alone.
    const bool compared = op_.signature && std::memcmp(&mine_, &theirs_, sizeof mine_) != 0;
    if (error.code == DDP_ERROR_MISMATCH && compared) return disagree(error.rank);
    if (is_interruption(error)) return link_.interrupted({tag_.step, tag_.bucket, collective_.kind});
    error.bucket = tag_.bucket;
    error.step = tag_.step;
    if (!may_be_an_echo(error.code)) error = on_rank(link_.rank(), std::move(error));
    return link_.break_everywhere(link_.monitor_ ? link_.monitor_->resolve(error, describe(mine_), advice_for(mine_))
                                                 : error);
}

ErrorInfo Link::break_everywhere(const ErrorInfo& error) {
    const NoCancellation uncancelled;
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
        transport = transport_;
        on_device = on_device_;
        executor = executor_;
    }
    if (!arbiter) take_verdict(error);
    // While joining there may be nothing to stop yet; create() looks again when there is.
    if (transport) transport->abort();
    if (arbiter) take_verdict(arbiter->decide(*this, error));
    set_broken();
    if (executor) executor->refuse(verdict());
    // Streams go on then, without a result: everybody who waits for one must be able to see why.
    if (on_device) on_device->abort();
    // A queued operation may be the last to use memory and events of a device, whose functions may not return before
    // that.
    if (executor) executor->poison(verdict());
}

void Link::take_verdict(const ErrorInfo& decided) {
    {
        std::lock_guard lock(mutex_);
        if (!verdict_.ok()) return;
        recorder_.broken(decided);  // before anybody learns of it, who may exit at once
        verdict_ = decided;
    }
    if (const int signal = blame_signal.load(std::memory_order_relaxed); signal != 0 && decided.rank == rank())
        kill(getpid(), signal);
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

std::int32_t Link::next_context_number() const {
    std::lock_guard lock(mutex_);
    return next_context_;
}

void Link::take_context_number(std::int32_t number) {
    std::lock_guard lock(mutex_);
    next_context_ = number + 1;
}

void Link::forget_context(std::int32_t number) {
    std::lock_guard lock(mutex_);
    param_names_.erase(number);
}

void Link::name_params(std::int32_t number, std::vector<std::string> names) {
    std::lock_guard lock(mutex_);
    param_names_[number] = std::move(names);
}

std::string Link::param_name(std::int32_t number, std::int32_t param) const {
    std::lock_guard lock(mutex_);
    const auto found = param_names_.find(number);
    const auto index = static_cast<std::size_t>(param);
    return found == param_names_.end() || index >= found->second.size() ? "" : found->second[index];
}

void Link::abort_transports() {
    transport_->abort();
    if (on_device_ && on_device_ != transport_) on_device_->abort();
}

// Operations that are enqueued on devices belong to other ranks as well: they are aborted only if they do not end by
// themselves.
void Link::end_enqueued() {
    watch_->stop_checking();
    if (!watch_->drain(Deadline::after_ms(kDrainMs))) {
        on_device_->abort();
        watch_->drain(Deadline::after_ms(kDrainMs));
    }
    // Memory of a device that does not answer is kept for ever.
    if (!watch_->stop()) new auto(std::move(paths_));  // NOLINT
    watch_.reset();
}

// Memory of the backend goes back to it when the stream is done with it.
std::shared_ptr<std::byte> Link::allocate(std::size_t bytes, const StreamPtr& stream) {
    void* memory = on_device_ ? on_device_->allocate(std::max<std::size_t>(bytes, 1), stream->device()) : nullptr;
    if (!memory) return stream->allocate(bytes);
    return {static_cast<std::byte*>(memory), [owner = on_device_, stream](std::byte* m) {
                if (stream->idle_within(kDrainMs))
                    owner->deallocate(m);
                else
                    log(LogLevel::kWarn, device_name(stream->device()),
                        ": a bucket is not freed, because work on it does not end");
            }};
}

DevicePath& Link::path(const ddp_device& device) {
    if (on_device_ && !watch_)
        watch_ = std::make_unique<StreamWatch>(
            [weak = std::weak_ptr(on_device_)] {
                if (const auto transport = weak.lock()) transport->check_enqueued();
            },
            [this, self = weak_from_this()](const ErrorInfo& error, const std::string& what) {
                if (const auto alive = self.lock()) enqueued_failed(error, what);
            });
    auto& path = paths_[{device.kind, device.index}];
    if (!path)
        path = std::make_unique<DevicePath>(DevicePath::Config{device, on_device_.get(), transport_.get(), watch_.get(),
                                                               rank(), world(), [this] { check(); }});
    return *path;
}

void Link::check_enqueued() {
    check();
    if (!on_device_) return;
    try {
        on_device_->check_enqueued();
    } catch (const Error& error) {
        enqueued_failed(error.info(), "operations on a device");
    }
    check();
}

// On a thread of the watch's, or on one that has waited for a device.
void Link::enqueued_failed(const ErrorInfo& error, const std::string& what) {
    if (broken()) return;
    break_everywhere(monitor_ ? monitor_->resolve(error, what) : error);
}

}  // namespace libddp
