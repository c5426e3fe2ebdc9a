#include "record/recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "util/descriptors.h"
#include "util/host.h"
#include "util/log.h"
#include "util/mutex.h"
#include "util/process.h"

namespace libddp::record {
namespace {

void copy_text(char* to, std::size_t capacity, std::string_view text) {
    std::memcpy(to, text.data(), std::min(text.size(), capacity - 1));
}

template <class Value>
std::string_view bytes_of(const Value& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

VerdictFact fact_of(const ErrorInfo& error) {
    return {error.code, error.rank, error.param, error.bucket, error.step};
}

// Calls the function. If it throws, a warning names what is not recorded, and the result is an
// empty one.
template <class Function>
auto try_to_record(std::string_view what, Function function) {
    try {
        return function();
    } catch (...) {
        log(LogLevel::kWarn, what, " not recorded (DDP_RECORD): ", caught().message);
        return decltype(function())();
    }
}

// Relaxed: a total goes with nothing else.
void add_to(std::uint64_t& total, std::uint64_t amount) {
    std::atomic_ref(total).fetch_add(amount, std::memory_order_relaxed);
}

// Last: it tells a reader that the rest is there.
void put_magic(char* place) {
    std::uint64_t magic = 0;
    static_assert(sizeof magic == sizeof kMagic);
    std::memcpy(&magic, kMagic, sizeof magic);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(place))
        .store(magic, std::memory_order_release);
}

void add_text(std::string& bytes, std::string_view text) {
    bytes.append(text.substr(0, text.find('\0'))).push_back('\0');
}

}  // namespace

// The file, of which each block is mapped where it is written. It is never unmapped: threads may
// write until the end.
class Record {
public:
    // Null: none is wanted, or it could not be made.
    static Record* of_process();

    Record(const std::string& folder);

    // Returns the time of the event.
    std::int64_t write(std::uint16_t owner, const Entry& entry) noexcept;
    // Returns where the fact lies in memory.
    char* add(FactKind kind, std::uint32_t owner, std::string_view fact);
    // names: of the parameters, each ended by a 0.
    char* add_context(std::uint32_t owner, const ContextFact& head, std::string_view names);
    // There are so many facts that no more groups and contexts are recorded, nor what belongs to
    // them. Says so once.
    bool is_full();
    // Throws when there are too many: their number has 16 bits.
    std::uint16_t new_owner();
    std::uint32_t mark(std::string_view name);
    void beat(bool first) noexcept;
    void note_failure(const ErrorInfo& error);
    void set_workload(std::int64_t samples, std::int64_t steps) {
        std::atomic_ref(head_->samples).store(samples, std::memory_order_relaxed);
        std::atomic_ref(head_->steps).store(steps, std::memory_order_relaxed);
    }

private:
    char* append(std::size_t bytes) DDP_REQUIRES(mutex_);
    char* add_locked(FactKind kind, std::uint32_t owner, std::string_view fact)
        DDP_REQUIRES(mutex_);

    const std::string path_;
    Descriptor file_;
    std::uint64_t capacity_ = kEvents;
    Head* head_ = nullptr;
    Event* events_ = nullptr;
    std::atomic<std::uint32_t> owners_{1};
    std::once_flag said_full_;
    Mutex mutex_;
    std::size_t size_ DDP_GUARDED_BY(mutex_) = 0;
    std::atomic<std::uint32_t> facts_{0};
    std::map<std::string, std::uint32_t, std::less<>> marks_ DDP_GUARDED_BY(mutex_);
    // Each list once: the context, and where they lie.
    std::vector<std::pair<std::uint32_t, std::string_view>> names_ DDP_GUARDED_BY(mutex_);
    Mutex failure_mutex_;
    char* failure_ DDP_GUARDED_BY(failure_mutex_) = nullptr;  // null: there was none yet
};

namespace {

struct Process {
    std::once_flag opened;
    Record* record = nullptr;
};
// A child after fork() writes a record of its own: it must not take the place of its parent's
// events.
std::atomic<Process*> process{new Process};
bool watches_forks = false;

// Each fact takes a page of the file and a mapping, of which a process may have some ten thousand.
constexpr std::uint32_t kMostFacts = 8000;
constexpr std::size_t kMostMarks = 1000;
constexpr const char* kOtherMark = "(other)";
constexpr std::uint32_t kMostOwners = 0xffff;

thread_local const Connecting* connecting = nullptr;

constexpr std::uint64_t kFewestEvents = 64;
constexpr std::uint64_t kMostEvents = std::uint64_t{1} << 26;  // 4 GiB

std::uint64_t wanted_events() {
    const char* text = std::getenv("DDP_RECORD_EVENTS");
    if (!text || !*text) return kEvents;
    std::uint64_t count = 0;
    const char* end = text + std::strlen(text);
    const auto read = std::from_chars(text, end, count);
    if (read.ec != std::errc() || read.ptr != end || count < kFewestEvents || count > kMostEvents)
        fail(DDP_ERROR_INVALID_ARGUMENT, "DDP_RECORD_EVENTS is '", text,
             "'; it must be a number from ", kFewestEvents, " to ", kMostEvents);
    return (count + kFewestEvents - 1) / kFewestEvents * kFewestEvents;  // whole pages
}

std::int32_t launch_rank() {
    const char* text = std::getenv("DDP_RANK");
    return text && *text ? std::atoi(text) : -1;
}

void open_record(Process& of) noexcept {
    try {
        const char* folder = std::getenv("DDP_RECORD");
        if (!folder || !*folder) return;
        // First: a fork in the middle must not leave the child with a call that never ends.
        if (!std::exchange(watches_forks, true))
            pthread_atfork(nullptr, nullptr,
                           [] { process.store(new Process, std::memory_order_release); });
        of.record = new Record(folder);
    } catch (...) {
        log(LogLevel::kWarn, "nothing is recorded (DDP_RECORD): ", caught().message);
    }
}

}  // namespace

Record* Record::of_process() {
    Process& mine = *process.load(std::memory_order_acquire);
    std::call_once(mine.opened, open_record, std::ref(mine));
    return mine.record;
}

Record::Record(const std::string& folder)
    : path_(str(folder, "/", host_name(), ".", getpid(), kSuffix)),
      file_(open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    if (!file_) fail(DDP_ERROR_IO, "cannot make ", path_, ": ", std::strerror(errno));
    capacity_ = wanted_events();
    char* memory = append(kPage + capacity_ * sizeof(Event));
    head_ = reinterpret_cast<Head*>(memory);
    events_ = reinterpret_cast<Event*>(memory + kPage);
    head_->events = capacity_;
    head_->pid = getpid();
    head_->launch_rank = launch_rank();
    if (const auto state = process_state(getpid())) head_->started = state->started;
    head_->opened_monotonic_ns = now_ns();
    head_->opened_realtime_ns =
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
    copy_text(head_->host_id, sizeof head_->host_id, host_id());
    copy_text(head_->host, sizeof head_->host, host_name());
    put_magic(head_->magic);
}

// The file has the pages before they are mapped: a full disk is an error here, and not a signal
// when they are written.
char* Record::append(std::size_t bytes) {
    const WriteSignalsHeld held;
    if (const int error =
            posix_fallocate(file_.get(), static_cast<off_t>(size_), static_cast<off_t>(bytes));
        error != 0)
        fail(DDP_ERROR_IO, "cannot extend ", path_, ": ", std::strerror(error));
    // Pages of the system may be larger than those of the file: 64 KiB on some ARM servers.
    const std::size_t before = size_ % static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, before + bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                        file_.get(), static_cast<off_t>(size_ - before));
    if (memory == MAP_FAILED) fail(DDP_ERROR_IO, "cannot map ", path_, ": ", std::strerror(errno));
    size_ += bytes;
    return static_cast<char*>(memory) + before;
}

std::int64_t Record::write(std::uint16_t owner, const Entry& entry) noexcept {
    const std::uint64_t index =
        std::atomic_ref(head_->written).fetch_add(1, std::memory_order_relaxed);
    Event& event = events_[index % capacity_];
    const std::atomic_ref number(event.number);
    number.store(0, std::memory_order_relaxed);
    // A reader that finds any of what follows then finds that number gone (tools/why/reader.cc).
    std::atomic_thread_fence(std::memory_order_release);
    const std::int64_t at = entry.time_ns != 0 ? entry.time_ns : now_ns();
    event.time_ns = at;
    event.since_ns = entry.since_ns;
    event.step = entry.step;
    event.sequence = entry.sequence;
    event.bytes = entry.bytes;
    event.kind = entry.kind;
    event.owner = owner;
    event.bucket = entry.bucket;
    event.param = entry.param;
    event.detail = entry.detail;
    number.store(index + 1, std::memory_order_release);
    return at;
}

std::uint16_t Record::new_owner() {
    const std::uint32_t owner = owners_.fetch_add(1, std::memory_order_relaxed);
    if (owner > kMostOwners)
        fail(DDP_ERROR_LIMIT, "a record holds ", kMostOwners, " groups and contexts");
    return static_cast<std::uint16_t>(owner);
}

char* Record::add(FactKind kind, std::uint32_t owner, std::string_view fact) {
    const Lock lock(mutex_);
    return add_locked(kind, owner, fact);
}

char* Record::add_locked(FactKind kind, std::uint32_t owner, std::string_view fact) {
    const std::size_t bytes = (sizeof(FactHead) + fact.size() + kPage - 1) / kPage * kPage;
    char* memory = append(bytes);
    facts_.fetch_add(1, std::memory_order_relaxed);
    FactHead head{{}, bytes, fact.size(), kind, owner};
    std::memcpy(memory, &head, sizeof head);
    std::memcpy(memory + sizeof head, fact.data(), fact.size());
    put_magic(memory);
    return memory + sizeof head;
}

char* Record::add_context(std::uint32_t owner, const ContextFact& head, std::string_view names) {
    std::string fact(bytes_of(head));
    fact.append(static_cast<std::size_t>(head.params) * sizeof(AnnouncedStep), '\0');
    const std::size_t before_names = fact.size();
    const Lock lock(mutex_);
    // In an elastic job the context moves to a new group with each roster.
    const auto same = std::find_if(names_.begin(), names_.end(),
                                   [&](const auto& one) { return one.second == names; });
    if (same != names_.end())
        return add_locked(FactKind::kContextAgain, owner,
                          fact.append(bytes_of(static_cast<std::int32_t>(same->first))));
    char* const place = add_locked(FactKind::kContext, owner, fact.append(names));
    names_.emplace_back(owner, std::string_view(place + before_names, names.size()));
    return place;
}

bool Record::is_full() {
    if (facts_.load(std::memory_order_relaxed) < kMostFacts) return false;
    std::call_once(said_full_, [] {
        log(LogLevel::kWarn, "the record holds ", kMostFacts,
            " facts: later groups and contexts are not recorded (DDP_RECORD)");
    });
    return true;
}

void Record::beat(bool first) noexcept {
    const std::atomic_ref alive(head_->alive_ns);
    const std::int64_t now = now_ns(), before = alive.exchange(now, std::memory_order_relaxed);
    if (!first && now - before >= kStandstillNs)
        write(0, {.kind = EventKind::kStoodStill, .since_ns = before, .time_ns = now});
}

void Record::note_failure(const ErrorInfo& error) {
    const Lock lock(failure_mutex_);
    if (!failure_) failure_ = add(FactKind::kFailure, 0, std::string(kFailureBytes, '\0'));
    FailureFact fact{0, fact_of(error)};
    const std::atomic_ref time(reinterpret_cast<FailureFact*>(failure_)->time_ns);
    // as the number of an event
    time.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(failure_ + sizeof fact.time_ns,
                reinterpret_cast<const char*>(&fact) + sizeof fact.time_ns,
                sizeof fact - sizeof fact.time_ns);
    char* const text = failure_ + sizeof fact;
    std::memset(text, 0, kFailureBytes - sizeof fact);
    copy_text(text, kFailureBytes - sizeof fact, error.message);
    time.store(now_ns(), std::memory_order_release);
}

std::uint32_t Record::mark(std::string_view name) {
    const Lock lock(mutex_);
    if (const auto found = marks_.find(name); found != marks_.end()) return found->second;
    if (marks_.size() >= kMostMarks) name = kOtherMark;
    if (const auto found = marks_.find(name); found != marks_.end()) return found->second;
    const auto id = static_cast<std::uint32_t>(marks_.size());
    add_locked(FactKind::kMark, id, name);
    marks_.emplace(name, id);
    return id;
}

Recorder Recorder::of_group(std::int32_t rank, std::int32_t world, std::string_view name,
                            std::string_view key, std::string_view backend) {
    Record* record = Record::of_process();
    if (!record || record->is_full()) return {};
    return try_to_record(str("group '", name, "' is"), [&] {
        std::string fact(bytes_of(GroupFact{rank, world, now_ns(), {}}));
        for (const std::string_view text : {name, key, backend}) add_text(fact, text);
        const std::uint16_t owner = record->new_owner();
        char* const place = record->add(FactKind::kGroup, owner, fact);
        return Recorder(record, reinterpret_cast<Totals*>(place + offsetof(GroupFact, totals)),
                        owner);
    });
}

Recorder Recorder::of_context(const std::vector<std::string>& params,
                              AnnouncedStep*& announced) const {
    announced = nullptr;
    if (!record_ || record_->is_full()) return {};
    return try_to_record("a context is", [&] {
        std::string names;
        for (const std::string& name : params) add_text(names, name);
        const std::uint16_t owner = record_->new_owner();
        char* const place =
            record_->add_context(owner, {owner_, static_cast<std::int32_t>(params.size())}, names);
        announced = reinterpret_cast<AnnouncedStep*>(place + sizeof(ContextFact));
        return Recorder(record_, totals_, owner);
    });
}

void Recorder::write(const Entry& entry) const noexcept {
    if (!record_) return;
    const std::int64_t at = record_->write(owner_, entry);
    if (entry.kind == EventKind::kOperationEnd) {
        add_to(totals_->operations, 1);
        add_to(totals_->bytes, entry.bytes);
        add_to(totals_->operation_ns, static_cast<std::uint64_t>(at - entry.since_ns));
    } else if (entry.kind == EventKind::kStepEnd) {
        add_to(totals_->steps, 1);
        if (entry.detail != 0) add_to(totals_->synced_steps, 1);
    } else if (entry.kind == EventKind::kLeft) {
        std::atomic_ref(totals_->left_ns).store(at, std::memory_order_relaxed);
    }
}

void Recorder::plan(const std::vector<std::vector<std::int32_t>>& buckets) const {
    if (!record_ || record_->is_full()) return;
    std::string fact;
    for (const auto& params : buckets) {
        fact.append(bytes_of(static_cast<std::int32_t>(params.size())));
        for (const std::int32_t param : params) fact.append(bytes_of(param));
    }
    try_to_record("a bucket plan is", [&] { record_->add(FactKind::kPlan, owner_, fact); });
}

void Recorder::broken(const ErrorInfo& verdict) const {
    if (!record_) return;
    try_to_record("a verdict is", [&] {
        record_->add(FactKind::kVerdict, owner_,
                     std::string(bytes_of(fact_of(verdict))) + verdict.message);
    });
    write({.kind = EventKind::kBroken,
           .step = verdict.step,
           .bucket = verdict.bucket,
           .detail = verdict.code});
}

void Recorder::joined() const noexcept {
    if (!record_) return;
    std::atomic_ref(totals_->joined_ns).store(now_ns(), std::memory_order_relaxed);
    write({.kind = EventKind::kJoined});
    stay_loaded();  // exit() must find what is registered here
    // This late, so that it comes before what backends do at an exit, which may take long.
    static const int registered = on_exit(
        [](int status, void*) {
            if (Record* const record = process.load(std::memory_order_acquire)->record)
                record->write(0, {.kind = EventKind::kExit, .detail = status});
        },
        nullptr);
    static_cast<void>(registered);
}

void Recorder::beat(bool first) const noexcept {
    if (record_) record_->beat(first);
}

PeerFact* Recorder::peers(const std::vector<std::int32_t>& ranks) const {
    if (!record_ || ranks.empty() || record_->is_full()) return nullptr;
    std::string fact;
    for (const std::int32_t rank : ranks) {
        PeerFact peer{};
        peer.rank = rank;
        fact.append(bytes_of(peer));
    }
    return try_to_record("connections are", [&] {
        return reinterpret_cast<PeerFact*>(record_->add(FactKind::kPeers, owner_, fact));
    });
}

Connecting::Connecting(const Recorder& of_group)
    : outer_(std::exchange(connecting, this)), recorder_(of_group), ranks_() {}

Connecting::Connecting(std::vector<std::int32_t> ranks)
    : outer_(std::exchange(connecting, this)),
      recorder_(outer_ ? outer_->recorder_ : Recorder()),
      ranks_(std::move(ranks)) {}

Connecting::~Connecting() {
    connecting = outer_;
}

PeerFact* Connecting::peers(std::vector<std::int32_t> ranks) {
    if (!connecting) return nullptr;
    if (!connecting->ranks_.empty())
        for (std::int32_t& rank : ranks) rank = connecting->ranks_[static_cast<std::size_t>(rank)];
    return connecting->recorder_.peers(ranks);
}

void mark_begin(std::string_view name) {
    Record* record = Record::of_process();
    if (!record) return;
    std::int64_t id = -1;
    try {
        id = record->mark(name);
    } catch (...) {
        static std::once_flag said;
        std::call_once(said, [&] {
            log(LogLevel::kWarn, "mark '", name, "' has no name in the record: ", caught().message);
        });
    }
    record->write(0, {.kind = EventKind::kMarkBegin, .sequence = id, .param = gettid()});
}

void note_failure(const ErrorInfo& error) noexcept {
    // A program may look again and again whether something has come, end a wait itself, and skip
    // steps.
    if (error.code == DDP_ERROR_TIMEOUT || error.code == DDP_ERROR_INTERRUPTED ||
        error.code == DDP_ERROR_NONFINITE)
        return;
    Record* record = Record::of_process();
    if (!record) return;
    try_to_record("an error is", [&] { record->note_failure(error); });
}

void set_workload(std::int64_t samples, std::int64_t steps) {
    if (Record* record = Record::of_process()) record->set_workload(samples, steps);
}

void mark_end() {
    if (Record* record = Record::of_process())
        record->write(0, {.kind = EventKind::kMarkEnd, .param = gettid()});
}

}  // namespace libddp::record
