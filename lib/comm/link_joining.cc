// How a link comes to be.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "comm/registry.h"
#include "util/deadline.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/version.h"

namespace libddp {
namespace {

// How long a rank that waits for others waits in the store before it looks again whether the group
// has broken.
constexpr std::int64_t kStoreSliceMs = 200;
// How long the store has to answer a rank that wants to know who is missing.
constexpr std::int64_t kStoreAnswerMs = 1'000;
// How long ranks that chose differently keep the store for one that comes late. Some load a
// framework first.
constexpr std::int64_t kLatecomerMs = 10'000;
// When a rank that waits for others says whom it waits for, and how often again.
constexpr std::int64_t kFirstWordMs = 5'000;
constexpr std::int64_t kNextWordMs = 30'000;

// The error that broke this link or, while it is joined, an earlier one of its group.
ErrorInfo broken_so_far(const Link& link, const Link::Links& earlier) {
    if (auto verdict = link.verdict(); !verdict.ok()) return verdict;
    for (const auto& other : earlier)
        if (auto verdict = other->verdict(); !verdict.ok()) return verdict;
    return {};
}

Executor::Runner runner_for(const Transport& transport) {
    const bool callers = transport.has(DDP_BACKEND_CALLER_THREAD);
    if (!transport.has(DDP_BACKEND_ONE_THREAD))
        return callers ? Executor::Runner::kWaitingThread : Executor::Runner::kAnyone;
    if (callers)
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend '", transport.name(),
             "': capabilities DDP_BACKEND_ONE_THREAD and DDP_BACKEND_CALLER_THREAD exclude each "
             "other");
    return Executor::Runner::kProgressThread;
}

// As the program writes them; those that ranks need not agree on are not in a group's
// configuration.
std::string flags_text(std::uint32_t flags) {
    std::string text;
    for (const auto& [flag, name] :
         {std::pair{std::uint32_t{DDP_GROUP_DETERMINISTIC}, "DDP_GROUP_DETERMINISTIC"},
          std::pair{std::uint32_t{DDP_GROUP_NO_MATCH_CHECK}, "DDP_GROUP_NO_MATCH_CHECK"}})
        if (flags & flag) text += str(text.empty() ? "" : " | ", name);
    return text.empty() ? "none" : text;
}

// Without the network of this rank: names of interfaces differ between hosts, and addresses always
// do.
std::string options_of_all_ranks(std::string_view options) {
    std::string text;
    while (!options.empty()) {
        const std::string_view item = options.substr(0, options.find(','));
        options.remove_prefix(std::min(item.size() + 1, options.size()));
        if (item.starts_with("iface=") || item.starts_with("host=")) continue;
        text += str(text.empty() ? "" : ",", item);
    }
    return text;
}

}  // namespace

// Takes this rank's place, compares options, waits until every rank is here, and connects. Exists
// only as long as that takes.
class LinkJoining {
public:
    // earlier: as for Link::create.
    LinkJoining(Link& link, Link::Links earlier)
        : link_(link),
          earlier_(std::make_shared<const Link::Links>(std::move(earlier))),
          deadline_(Deadline::after_ms(link.timeout_ms())) {}

    // Throws the error that all ranks report.
    void run(const ddp_backend* backend);

private:
    void compare_options();
    void wait_for_all();
    std::vector<std::int32_t> missing_ranks() const;
    void say_who_is_missing() const;
    void connect(const ddp_backend* backend);
    ErrorInfo failed(ErrorInfo error);
    std::string text() const;

    Link& link_;
    const std::shared_ptr<const Link::Links> earlier_;
    const Deadline deadline_;
};

std::shared_ptr<Link> Link::create(const GroupConfig& config, const Links& earlier) {
    const ddp_backend* backend = find_backend(config.backend);
    std::shared_ptr<Link> link(new Link(config, find_meeting_place(config)), &Link::destroy);
    LinkJoining(*link, earlier).run(backend);
    // A verdict that came while there was no transport yet found nothing to abort.
    if (auto verdict = link->verdict(); !verdict.ok()) link->on_verdict(verdict);
    link->recorder_.joined();
    log(LogLevel::kInfo, "group '", config.name, "': rank ", link->rank(), " of ", link->world(),
        ", backend ", link->backend_name());
    return link;
}

void LinkJoining::run(const ddp_backend* backend) {
    if (link_.world() == 1) return connect(backend);
    interrupt::refuse_inside_check();
    const MeetingPlace& place = link_.place_;
    Monitor::Config config{place.store,  place.prefix,     place.rank,
                           place.world,  place.store_rank, process_text(),
                           link_.name(), link_.recorder_,  static_cast<bool>(link_.config_.absent)};
    link_.monitor_ = std::make_unique<Monitor>(
        std::move(config), [&link = link_](const ErrorInfo& verdict) { link.on_verdict(verdict); });
    try {
        link_.monitor_->start();
        compare_options();
        wait_for_all();
        connect(backend);
    } catch (...) {
        throw Error(failed(caught()));
    }
}

void LinkJoining::compare_options() {
    struct Field {
        const char* name;
        std::string value;
    };
    const GroupConfig& config = link_.config_;
    const MeetingPlace& place = link_.place_;
    const Field fields[] = {
        {"libddp version", kVersion},
        {"world_size", std::to_string(place.world)},
        {"backend", config.backend},
        {"backend_options", options_of_all_ranks(config.backend_options)},
        {"flags", flags_text(config.flags)},
        {"round_robin", std::to_string(std::max(config.round_robin, 1u))},
    };
    // One value for all of them: the first rank's, which every other compares with its own. Texts
    // of C hold no zero.
    std::string mine;
    for (const auto& field : fields) mine += field.value + '\0';
    const std::string first =
        place.store->compare_set(place.prefix + "options", "", mine + std::to_string(place.rank));
    if (first.starts_with(mine)) return;
    std::string_view rest = first;
    const auto next = [&rest] {
        const std::string_view text = rest.substr(0, rest.find('\0'));
        rest.remove_prefix(std::min(text.size() + 1, rest.size()));
        return text;
    };
    const std::string_view rank = std::string_view(first).substr(first.rfind('\0') + 1);
    for (const auto& field : fields)
        if (const std::string_view theirs = next(); theirs != field.value)
            throw Error(link_.monitor_->report(
                {DDP_ERROR_MISMATCH,
                 str("group '", config.name, "': rank ", rank, " has ", field.name, " '", theirs,
                     "', but rank ", place.rank, " has '", field.value,
                     "'; all ranks must give the same"),
                 place.rank}));
}

void LinkJoining::wait_for_all() {
    const MeetingPlace& place = link_.place_;
    const GroupConfig& config = link_.config_;
    auto& store = *place.store;
    const auto all_key = place.prefix + "all";
    if (store.add(place.prefix + "joined", 1) == place.world) store.set(all_key, "1");
    log(LogLevel::kInfo, "group '", config.name, "' at ", store.describe(), ": rank ", place.rank,
        " of ", place.world, " is here and waits for the others");
    auto next_word = Deadline::after_ms(kFirstWordMs);
    for (;;) {
        if (auto broken = broken_so_far(link_, *earlier_); !broken.ok()) throw Error(broken);
        try {
            store.wait({all_key}, std::min(kStoreSliceMs,
                                           std::max<std::int64_t>(1, deadline_.remaining_ms())));
            return;
        } catch (const Error& error) {
            if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        }
        if (ErrorInfo absent = config.absent ? config.absent() : ErrorInfo{}; !absent.ok())
            throw Error(link_.monitor_->report(absent));
        if (deadline_.expired()) break;
        if (!next_word.expired()) continue;
        say_who_is_missing();
        next_word = Deadline::after_ms(kNextWordMs);
    }
    if (!store.answers(kStoreAnswerMs))
        fail(DDP_ERROR_TIMEOUT, "the store at ", store.describe(), " does not answer");
    const auto missing = missing_ranks();
    // All came, but not all went on.
    if (missing.empty())
        fail(DDP_ERROR_TIMEOUT, "not every rank was ready within ", config.timeout_ms, " ms");
    const ErrorInfo absent{
        DDP_ERROR_TIMEOUT,
        str("group '", config.name, "' at ", store.describe(), ": of ", place.world,
            " ranks these did not come within ", config.timeout_ms, " ms: ", ranks_text(missing)),
        missing.front()};
    // Some of them may be waiting for others in the link before, where all have a monitor that
    // answers.
    if (!earlier_->empty()) throw Error(earlier_->back()->monitor_->resolve(absent, text()));
    throw Error(link_.monitor_->report(absent));
}

std::vector<std::int32_t> LinkJoining::missing_ranks() const {
    std::vector<std::int32_t> missing;
    for (std::int32_t r = 0; r < link_.world(); ++r)
        if (!link_.monitor_->has_come(r)) missing.push_back(r);
    return missing;
}

// One rank speaks for all: the lowest that is here.
void LinkJoining::say_who_is_missing() const {
    const MeetingPlace& place = link_.place_;
    for (std::int32_t r = 0; r < place.rank; ++r)
        if (link_.monitor_->has_come(r)) return;
    const auto missing = missing_ranks();
    if (missing.empty()) return;
    log(LogLevel::kWarn, "group '", link_.name(), "' at ", place.store->describe(), ": rank ",
        place.rank, " of ", place.world, " still waits for ", ranks_text(missing),
        "; the timeout is ", link_.timeout_ms(), " ms");
}

void LinkJoining::connect(const ddp_backend* backend) {
    const MeetingPlace& place = link_.place_;
    const GroupConfig& config = link_.config_;
    const auto why_not = [&link = link_, earlier = std::weak_ptr(earlier_)] {
        const auto joined_with = earlier.lock();
        return broken_so_far(link, joined_with ? *joined_with : Link::Links{});
    };
    Transport::Setup setup{
        place.store, place.prefix + "net/", config.name,       config.backend_options,
        place.rank,  place.world,           config.timeout_ms, config.flags,
        why_not};
    Transport::Setup host_setup = setup;
    const record::Connecting connecting(link_.recorder_);
    auto transport = std::make_shared<Transport>(backend, std::move(setup));
    std::shared_ptr<Transport> on_device = transport->has(DDP_BACKEND_CUDA) ? transport : nullptr;
    if (transport->has(DDP_BACKEND_DEVICE_ONLY)) {
        if (!on_device || transport->has(DDP_BACKEND_ONE_THREAD | DDP_BACKEND_CALLER_THREAD))
            fail(DDP_ERROR_INVALID_ARGUMENT, "backend '", transport->name(),
                 "': capability DDP_BACKEND_DEVICE_ONLY needs DDP_BACKEND_CUDA, and excludes "
                 "DDP_BACKEND_ONE_THREAD and DDP_BACKEND_CALLER_THREAD");
        host_setup.prefix = place.prefix + "net/host/";
        host_setup.options = "";
        transport = std::make_shared<Transport>(nullptr, std::move(host_setup));
    }
    const bool answers = transport->has(DDP_BACKEND_INTERRUPTIBLE) &&
                         (!on_device || on_device->has(DDP_BACKEND_INTERRUPTIBLE));
    const auto interrupted = [weak = link_.weak_from_this()](const WaitTarget& waited_for) {
        const auto link = weak.lock();
        return link ? link->break_everywhere(interruption(link->rank(), waited_for))
                    : ErrorInfo{DDP_ERROR_ABORTED, "the group was freed"};
    };
    auto executor = Executor::start(runner_for(*transport), answers, interrupted);
    std::shared_ptr<Executor> comparisons;
    // A backend that takes host memory as well is entered by one thread at a time.
    if (on_device && on_device != transport && place.world > 1)
        comparisons = Executor::start(Executor::Runner::kProgressThread, false, interrupted);
    auto devices = std::make_unique<LinkDevices>(
        link_, transport, on_device, std::move(comparisons),
        [&link = link_](ErrorInfo error, const std::string& what) {
            if (link.broken()) return;
            if (!may_be_an_echo(error.code)) error = on_rank(link.rank(), std::move(error));
            Monitor* const monitor = link.monitor_.get();
            link.break_everywhere(monitor ? monitor->resolve(error, what) : error);
        });
    const Lock lock(link_.mutex_);
    link_.transport_ = std::move(transport);
    link_.devices_ = std::move(devices);
    link_.executor_ = std::move(executor);
    link_.watch_callbacks(link_.executor_->waiting_callbacks());
}

// The error that all ranks report for a failure here.
ErrorInfo LinkJoining::failed(ErrorInfo error) {
    Monitor& monitor = *link_.monitor_;
    const MeetingPlace& place = link_.place_;
    if (error.code == DDP_ERROR_ALREADY_EXISTS) return error;
    if (is_interruption(error))
        return monitor.report_briefly(
            interruption(link_.rank(), str("the other ranks of group '", link_.name(), "'")));
    for (const auto& link : *earlier_)
        if (auto broken = link->verdict(); !broken.ok()) return link_.adopt(broken, *link);
    const bool here = error.rank < 0 && !may_be_an_echo(error.code);
    if (here) error = could_not_join(place.rank, link_.name(), std::move(error));
    const ErrorInfo agreed = monitor.resolve(error, text());
    // Without the store, who comes late would not learn why nobody is there.
    if (place.store_may_end &&
        (here || agreed.code == DDP_ERROR_MISMATCH || agreed.code == DDP_ERROR_LIMIT))
        monitor.leave_last(std::clamp<std::int64_t>(deadline_.remaining_ms(), 1, kLatecomerMs));
    return agreed;
}

std::string LinkJoining::text() const {
    return str("joining group '", link_.name(), "'");
}

}  // namespace libddp
