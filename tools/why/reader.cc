#include "why/reader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "util/text.h"
#include "why/bytes.h"
#include "why/clocks.h"

namespace libddp::record {
namespace {

template <std::size_t size>
std::string text_of(const char (&field)[size]) {
    return std::string(field, strnlen(field, size));
}

// Numbers that no process writes are damage. Sums of the others do not overflow.
constexpr std::int64_t kMost = std::int64_t{1} << 57;      // four years of nanoseconds
constexpr std::int64_t kMostDate = std::int64_t{1} << 61;  // seventy
constexpr std::int32_t kMostRanks = 1 << 16;
constexpr std::uint32_t kMostMarks = 1 << 16;

bool is_sensible(std::int64_t number) {
    return number >= -1 && number < kMost;
}

std::int64_t sensible(std::int64_t number, const char* what) {
    if (!is_sensible(number)) throw std::runtime_error(std::string(what) + " makes no sense");
    return number;
}

bool is_sensible(const Event& event) {
    for (const std::int64_t number : {event.time_ns, event.since_ns, event.step, event.sequence})
        if (!is_sensible(number)) return false;
    return true;
}

// A file that its process may extend meanwhile.
class File {
public:
    explicit File(const std::filesystem::path& path)
        : size_(std::filesystem::file_size(path)), stream_(path, std::ios::binary) {
        if (!stream_) throw std::runtime_error(std::strerror(errno));
    }

    std::uint64_t size() const { return size_; }
    std::string read(std::uint64_t from, std::uint64_t count) {
        std::string bytes(count, '\0');
        stream_.seekg(static_cast<std::streamoff>(from));
        stream_.read(bytes.data(), static_cast<std::streamsize>(count));
        if (!stream_) throw std::runtime_error("it is too short");
        return bytes;
    }

private:
    const std::uint64_t size_;
    FileIn stream_;
};

// A part of a file, read three times, one after another.
struct Looks {
    std::string before, now, after;
};

Looks look(File& file, std::uint64_t from, std::uint64_t count) {
    Looks looks;
    for (std::string* one : {&looks.before, &looks.now, &looks.after}) {
        *one = file.read(from, count);
        // Pairs with the release of the number with which a process ends a write, and with the
        // fence behind the 0 with which it begins one.
        std::atomic_thread_fence(std::memory_order_acquire);
    }
    return looks;
}

// The number with which a process ends a write, as it was before and after everything else was
// read. 0: it was written meanwhile.
template <class Number>
Number number_of(const Looks& looks, std::size_t at) {
    const auto before = Bytes(std::string_view(looks.before).substr(at)).value<Number>();
    const auto after = Bytes(std::string_view(looks.after).substr(at)).value<Number>();
    return before == after ? before : 0;
}

// looks: at a part of the ring, of which the first slot has the index `first`.
void read_slots(ProcessRecord& record, const Looks& looks, std::uint64_t first,
                std::uint64_t ring) {
    for (std::uint64_t i = 0; i < looks.now.size() / sizeof(Event); ++i) {
        Event event;
        std::memcpy(&event, looks.now.data() + i * sizeof event, sizeof event);
        event.number = number_of<std::uint64_t>(looks, i * sizeof event);
        // Its number says its place: anything else is damage.
        if (event.number != 0 && (event.number - 1) % ring == first + i && is_sensible(event))
            record.events.push_back(event);
    }
}

void order_events(ProcessRecord& record, std::uint64_t ring, std::uint64_t most) {
    std::uint64_t newest = 0;
    for (const Event& event : record.events) newest = std::max(newest, event.number);
    const std::uint64_t kept = std::min(ring, most);
    std::erase_if(record.events, [&](const Event& event) { return newest - event.number >= kept; });
    std::sort(record.events.begin(), record.events.end(),
              [](const Event& a, const Event& b) { return a.number < b.number; });
    record.lost = newest > kept ? newest - kept : 0;
}

GroupRecord read_group(Bytes fact, std::uint32_t owner) {
    const auto head = fact.value<GroupFact>();
    if (head.world < 1 || head.world > kMostRanks || head.rank < 0 || head.rank >= head.world)
        throw std::runtime_error("the rank of a group makes no sense");
    GroupRecord group;
    group.owner = static_cast<std::uint16_t>(owner);
    group.rank = head.rank;
    group.world = head.world;
    group.created_ns = sensible(head.created_ns, "the time of a group's beginning");
    group.totals = head.totals;
    sensible(group.totals.joined_ns, "the time of a group's joining");
    sensible(group.totals.left_ns, "the time of a group's end");
    group.name = fact.text();
    group.key = fact.text();
    group.backend = fact.text();
    return group;
}

// All but the names, which come next.
ContextRecord read_nameless(Bytes& fact, std::uint32_t owner) {
    const auto head = fact.value<ContextFact>();
    ContextRecord context;
    context.owner = static_cast<std::uint16_t>(owner);
    context.group = static_cast<std::uint16_t>(head.group);
    for (std::int32_t i = 0; i < head.params; ++i)
        context.announced.push_back(fact.value<AnnouncedStep>());
    return context;
}

ContextRecord read_context(Bytes fact, std::uint32_t owner) {
    ContextRecord context = read_nameless(fact, owner);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < context.announced.size(); ++i) names.push_back(fact.text());
    context.params = std::make_shared<const std::vector<std::string>>(std::move(names));
    return context;
}

std::vector<std::vector<std::int32_t>> read_plan(Bytes fact, std::size_t params) {
    std::vector<std::vector<std::int32_t>> buckets;
    while (!fact.empty()) {
        auto& bucket = buckets.emplace_back();
        for (auto count = fact.value<std::int32_t>(); count > 0; --count) {
            const auto id = fact.value<std::int32_t>();
            if (id < 0 || static_cast<std::size_t>(id) >= params)
                throw std::runtime_error("a plan names no parameter");
            bucket.push_back(id);
        }
    }
    return buckets;
}

Verdict verdict_of(const VerdictFact& fact, std::string message) {
    return {fact.status, fact.rank, fact.param, fact.bucket, fact.step, std::move(message)};
}

Verdict read_verdict(Bytes fact) {
    const auto head = fact.value<VerdictFact>();
    return verdict_of(head, std::string(fact.rest()));
}

// time_ns: of the error; 0: none, or it is being written.
std::optional<Failure> read_failure(Bytes fact, std::int64_t time_ns) {
    const auto head = fact.value<FailureFact>();
    if (sensible(time_ns, "the time of an error") == 0) return std::nullopt;
    return Failure{verdict_of(head.error, fact.text()), time_ns};
}

// Adds up those with the same rank.
void read_peers(std::vector<Peer>& peers, Bytes fact) {
    while (!fact.empty()) {
        const auto one = fact.value<PeerFact>();
        for (const std::int64_t number : {one.stuck_since_ns, one.busy_ns, one.unread_ns})
            sensible(number, "what is counted of a connection");
        const auto same = [&](const Peer& peer) { return peer.rank == one.rank; };
        const auto at = std::find_if(peers.begin(), peers.end(), same);
        if (at == peers.end()) {
            peers.push_back(one);
            continue;
        }
        at->resent += one.resent;
        at->arrived += one.arrived;
        at->waiting += one.waiting;
        if (one.stuck_since_ns != 0 &&
            (at->stuck_since_ns == 0 || one.stuck_since_ns < at->stuck_since_ns))
            at->stuck_since_ns = one.stuck_since_ns;
        at->busy_ns = std::max(at->busy_ns, one.busy_ns);
        at->unread_ns = std::max(at->unread_ns, one.unread_ns);
    }
}

template <class Owners>
auto* find_owner(Owners& owners, std::uint32_t owner) {
    const auto found = std::find_if(owners.begin(), owners.end(),
                                    [&](const auto& one) { return one.owner == owner; });
    return found == owners.end() ? nullptr : &*found;
}

ContextRecord read_context_again(Bytes fact, std::uint32_t owner,
                                 const std::vector<ContextRecord>& earlier) {
    ContextRecord context = read_nameless(fact, owner);
    const ContextRecord* same =
        find_owner(earlier, static_cast<std::uint32_t>(fact.value<std::int32_t>()));
    if (!same || same->params->size() != context.announced.size())
        throw std::runtime_error("the parameters of a context have no names");
    context.params = same->params;
    return context;
}

// at: where the fact lies in `looks`.
void read_fact(ProcessRecord& record, const FactHead& head, const Looks& looks, std::size_t at) {
    Bytes fact(std::string_view(looks.now).substr(at, head.bytes));
    switch (head.kind) {
        case FactKind::kGroup:
            record.groups.push_back(read_group(fact, head.owner));
            return;
        case FactKind::kContext:
            record.contexts.push_back(read_context(fact, head.owner));
            return;
        case FactKind::kContextAgain:
            record.contexts.push_back(read_context_again(fact, head.owner, record.contexts));
            return;
        case FactKind::kPlan:
            if (auto* context = find_owner(record.contexts, head.owner))
                context->buckets = read_plan(fact, context->params->size());
            return;
        case FactKind::kVerdict:
            if (auto* group = find_owner(record.groups, head.owner))
                group->verdicts.push_back(read_verdict(fact));
            return;
        case FactKind::kPeers:
            if (auto* group = find_owner(record.groups, head.owner)) read_peers(group->peers, fact);
            return;
        case FactKind::kFailure:
            record.failure = read_failure(
                fact, number_of<std::int64_t>(looks, at + offsetof(FailureFact, time_ns)));
            return;
        case FactKind::kMark:
            record.marks[head.owner] = fact.rest();
            return;
    }
}

// A block that the process has not finished is the last one.
void read_facts(ProcessRecord& record, const Looks& looks) {
    Bytes blocks(looks.now);
    while (blocks.rest().size() >= sizeof(FactHead)) {
        const std::size_t at = looks.now.size() - blocks.rest().size();
        if (looks.before.compare(at, sizeof kMagic, kMagic, sizeof kMagic) != 0) return;
        FactHead head;
        std::memcpy(&head, blocks.rest().data(), sizeof head);
        if (head.bytes > head.block_bytes || head.block_bytes < sizeof head ||
            head.owner >= kMostMarks)
            throw std::runtime_error("a fact has no sensible size");
        Bytes block(blocks.take(head.block_bytes));
        block.take(sizeof head);
        block.take(head.bytes);
        read_fact(record, head, looks, at + sizeof head);
    }
}

ProcessRecord record_of(const Head& head, const std::string& path) {
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0)
        throw std::runtime_error("it does not begin like one");
    ProcessRecord record;
    record.path = path;
    record.identity.host = text_of(head.host);
    record.identity.host_id = text_of(head.host_id);
    record.identity.pid = head.pid;
    record.identity.launch_rank = head.launch_rank;
    record.identity.started = head.started;
    record.opened_monotonic_ns = sensible(head.opened_monotonic_ns, "the time of its beginning");
    if (head.opened_realtime_ns < 0 || head.opened_realtime_ns >= kMostDate)
        throw std::runtime_error("the date of its beginning makes no sense");
    record.opened_realtime_ns = head.opened_realtime_ns;
    record.alive_ns = sensible(head.alive_ns, "the time of its last sign of life");
    record.workload = {head.samples, head.steps};
    return record;
}

void check_ring(std::uint64_t events, std::uint64_t file_bytes) {
    if (events == 0 || file_bytes < kPage || events > (file_bytes - kPage) / sizeof(Event))
        throw std::runtime_error("it is too short");
}

// The newest events lie before the place of the next one, and perhaps at the end of the ring.
void read_newest(ProcessRecord& record, File& file, const Head& head, std::uint64_t most) {
    const auto read = [&](std::uint64_t first, std::uint64_t count) {
        read_slots(record, look(file, kPage + first * sizeof(Event), count * sizeof(Event)), first,
                   head.events);
    };
    const std::uint64_t wanted = std::min({head.events, head.written, most});
    const std::uint64_t end = head.written % head.events;
    const std::uint64_t before = std::min(wanted, end);
    read(end - before, before);
    read(head.events - (wanted - before), wanted - before);
    order_events(record, head.events, most);
}

// Empty: its process makes it at this moment, and writes the magic last.
std::optional<ProcessRecord> read_record(const std::string& path, const Limits& limits) try {
    File file(path);
    if (file.size() == 0) return std::nullopt;
    const Looks looks = look(file, 0, sizeof(Head));
    if (looks.before[0] == '\0') return std::nullopt;
    const Head head = Bytes(looks.now).value<Head>();
    ProcessRecord record = record_of(head, path);
    check_ring(head.events, file.size());
    read_newest(record, file, head, limits.events);
    const std::uint64_t facts = kPage + head.events * sizeof(Event);
    if (file.size() - facts > limits.fact_bytes)
        throw std::runtime_error("it holds too many facts");
    read_facts(record, look(file, facts, file.size() - facts));
    return record;
} catch (const std::runtime_error& error) {
    throw std::runtime_error(path + " is not a record of libddp: " + error.what());
}

}  // namespace

ProcessRecord read_head(const std::string& path) {
    return record_of(Bytes(File(path).read(0, sizeof(Head))).value<Head>(), path);
}

std::string shorten_record(const std::string& path, std::uint64_t bytes) {
    File file(path);
    Head head = Bytes(file.read(0, sizeof(Head))).value<Head>();
    ProcessRecord record = record_of(head, path);
    check_ring(head.events, file.size());
    const std::uint64_t facts = kPage + head.events * sizeof(Event),
                        fact_bytes = file.size() - facts;
    if (bytes < 2 * kPage + fact_bytes) return "";
    constexpr std::uint64_t kEventsOfPage = kPage / sizeof(Event);
    const std::uint64_t ring =
        std::min(head.events, (bytes - fact_bytes) / kPage * kEventsOfPage - kEventsOfPage);
    read_newest(record, file, head, ring);
    head.events = ring;
    std::string text(kPage + ring * sizeof(Event), '\0');
    std::memcpy(text.data(), &head, sizeof head);
    for (const Event& event : record.events)
        std::memcpy(text.data() + kPage + (event.number - 1) % ring * sizeof event, &event,
                    sizeof event);
    return text + file.read(facts, fact_bytes);
}

std::vector<ProcessRecord> read_records(const std::string& folder,
                                        std::vector<std::string>& complaints,
                                        const Limits& limits) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == kSuffix) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<ProcessRecord> records;
    for (const auto& path : paths) {
        try {
            if (auto record = read_record(path.string(), limits))
                records.push_back(std::move(*record));
        } catch (const std::exception& error) {  // among them a file that is larger than memory
            complaints.push_back(error.what());
        }
    }
    align_clocks(records);
    return records;
}

}  // namespace libddp::record
