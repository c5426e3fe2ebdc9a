#include "record/reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace libddp::record {
namespace {

// Reads values one after another. The file may be damaged: what is not there is an error.
class Bytes {
public:
    explicit Bytes(std::string_view bytes) : left_(bytes) {}

    template <class Value>
    Value value() {
        Value value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string text() {
        const std::size_t end = left_.find('\0');
        if (end == std::string_view::npos) throw std::runtime_error("a text has no end");
        std::string text(left_.substr(0, end));
        left_.remove_prefix(end + 1);
        return text;
    }
    std::string_view take(std::size_t count) {
        if (count > left_.size()) throw std::runtime_error("it is too short");
        const std::string_view taken = left_.substr(0, count);
        left_.remove_prefix(count);
        return taken;
    }
    std::string_view rest() const { return left_; }
    bool empty() const { return left_.empty(); }

private:
    std::string_view left_;
};

template <std::size_t size>
std::string text_of(const char (&field)[size]) {
    return std::string(field, strnlen(field, size));
}

void read_events(ProcessRecord& record, std::string_view ring, const Head& head) {
    std::uint64_t newest = 0;
    for (std::uint64_t i = 0; i < head.events; ++i) {
        Event event;
        std::memcpy(&event, ring.data() + i * sizeof event, sizeof event);
        // Its number says its place: anything else is damage.
        if (event.number == 0 || (event.number - 1) % head.events != i) continue;
        newest = std::max(newest, event.number);
        record.events.push_back(event);
    }
    std::erase_if(record.events, [&](const Event& event) { return event.number + head.events <= newest; });
    std::sort(record.events.begin(), record.events.end(),
              [](const Event& a, const Event& b) { return a.number < b.number; });
    record.lost = newest > head.events ? newest - head.events : 0;
}

GroupRecord read_group(Bytes fact, std::uint32_t owner) {
    const auto head = fact.value<GroupFact>();
    GroupRecord group;
    group.owner = static_cast<std::uint16_t>(owner);
    group.rank = head.rank;
    group.world = head.world;
    group.name = fact.text();
    group.key = fact.text();
    group.backend = fact.text();
    return group;
}

ContextRecord read_context(Bytes fact, std::uint32_t owner) {
    const auto head = fact.value<ContextFact>();
    ContextRecord context;
    context.owner = static_cast<std::uint16_t>(owner);
    context.group = static_cast<std::uint16_t>(head.group);
    for (std::int32_t i = 0; i < head.params; ++i) context.announced.push_back(fact.value<AnnouncedStep>());
    for (std::int32_t i = 0; i < head.params; ++i) context.params.push_back(fact.text());
    return context;
}

std::vector<std::vector<std::int32_t>> read_plan(Bytes fact, std::size_t params) {
    std::vector<std::vector<std::int32_t>> buckets;
    while (!fact.empty()) {
        auto& bucket = buckets.emplace_back();
        for (auto count = fact.value<std::int32_t>(); count > 0; --count) {
            const auto id = fact.value<std::int32_t>();
            if (id < 0 || static_cast<std::size_t>(id) >= params) throw std::runtime_error("a plan names no parameter");
            bucket.push_back(id);
        }
    }
    return buckets;
}

Verdict read_verdict(Bytes fact) {
    const auto head = fact.value<VerdictFact>();
    return {head.status, head.rank, head.param, head.bucket, head.step, std::string(fact.rest())};
}

template <class Owners>
auto* find_owner(Owners& owners, std::uint32_t owner) {
    const auto found = std::find_if(owners.begin(), owners.end(), [&](const auto& one) { return one.owner == owner; });
    return found == owners.end() ? nullptr : &*found;
}

void read_fact(ProcessRecord& record, const FactHead& head, Bytes fact) {
    switch (head.kind) {
        case FactKind::kGroup:
            record.groups.push_back(read_group(fact, head.owner));
            return;
        case FactKind::kContext:
            record.contexts.push_back(read_context(fact, head.owner));
            return;
        case FactKind::kPlan:
            if (auto* context = find_owner(record.contexts, head.owner))
                context->buckets = read_plan(fact, context->params.size());
            return;
        case FactKind::kVerdict:
            if (auto* group = find_owner(record.groups, head.owner)) group->verdicts.push_back(read_verdict(fact));
            return;
        case FactKind::kMark:
            record.marks.resize(std::max<std::size_t>(record.marks.size(), head.owner + std::size_t{1}));
            record.marks[head.owner] = fact.rest();
            return;
    }
}

constexpr const char* kSights = "seen-by-launcher";
constexpr std::uint32_t kMostMarks = 1 << 20;

// A block that the process has not finished is the last one.
void read_facts(ProcessRecord& record, Bytes blocks) {
    while (blocks.rest().size() >= sizeof(FactHead)) {
        FactHead head;
        std::memcpy(&head, blocks.rest().data(), sizeof head);
        if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) return;
        if (head.bytes > head.block_bytes || head.block_bytes < sizeof head || head.owner >= kMostMarks)
            throw std::runtime_error("a fact has no sensible size");
        Bytes block(blocks.take(head.block_bytes));
        block.take(sizeof head);
        read_fact(record, head, Bytes(block.take(head.bytes)));
    }
}

std::string contents(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

const GroupRecord* ProcessRecord::group(std::uint16_t owner) const {
    return find_owner(groups, owner);
}

const ContextRecord* ProcessRecord::context(std::uint16_t owner) const {
    return find_owner(contexts, owner);
}

void add_sight(const std::string& folder, const Sight& sight) {
    std::ofstream(folder + "/" + kSights, std::ios::app)
        << sight.launch_rank << ' ' << static_cast<int>(sight.kind) << ' ' << sight.text << '\n';
}

std::vector<Sight> read_sights(const std::string& folder) {
    std::vector<Sight> sights;
    std::ifstream file(folder + "/" + kSights);
    Sight sight;
    for (int kind = 0; file >> sight.launch_rank >> kind && std::getline(file >> std::ws, sight.text);) {
        sight.kind = static_cast<Sight::Kind>(kind);
        sights.push_back(sight);
    }
    return sights;
}

ProcessRecord parse_record(std::string_view text, const std::string& path) try {
    Bytes bytes(text);
    const Bytes first(bytes.take(kPage));
    const Head head = Bytes(first).value<Head>();
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) throw std::runtime_error("it does not begin like one");
    if (head.events == 0 || head.events > text.size() / sizeof(Event)) throw std::runtime_error("it is too short");
    ProcessRecord record;
    record.path = path;
    record.host = text_of(head.host);
    record.host_id = text_of(head.host_id);
    record.pid = head.pid;
    record.launch_rank = head.launch_rank;
    record.started = head.started;
    record.opened_monotonic_ns = head.opened_monotonic_ns;
    record.samples = head.samples;
    record.steps = head.steps;
    record.opened_realtime_ns = head.opened_realtime_ns;
    read_events(record, bytes.take(head.events * sizeof(Event)), head);
    read_facts(record, bytes);
    return record;
} catch (const std::runtime_error& error) {
    throw std::runtime_error(path + " is not a record of libddp: " + error.what());
}

std::vector<ProcessRecord> read_records(const std::string& folder, std::vector<std::string>& complaints) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == kSuffix) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<ProcessRecord> records;
    for (const auto& path : paths) {
        try {
            records.push_back(parse_record(contents(path), path.string()));
        } catch (const std::runtime_error& error) {
            complaints.push_back(error.what());
        }
    }
    return records;
}

}  // namespace libddp::record
