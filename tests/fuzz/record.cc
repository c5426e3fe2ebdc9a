// The record of a process as a damaged disk or somebody else left it, and what the tools make of it.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "record/cause.h"
#include "record/lateness.h"
#include "record/reader.h"

namespace fuzz::record {
namespace {

using namespace libddp::record;

template <class Value>
void add(std::string& file, const Value& value) {
    file.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class Value>
void overwrite(Value& value, std::string_view bytes) {
    std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
}

// Most of a file is empty. The input holds what is not: the head, some events, and facts, each behind its kind and owner.
std::string contents(Reader& bytes) {
    Head head{};
    head.events = 1 + bytes.below(8);
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    if (bytes.flag()) overwrite(head, bytes.piece());
    std::string file;
    add(file, head);
    file.resize(kPage);
    for (std::uint64_t i = 0; i < head.events && i < 8; ++i) {
        Event event{};
        overwrite(event, bytes.take(sizeof event));
        if (event.number != 0 && event.number < 256) event.number = i + 1;
        add(file, event);
    }
    while (!bytes.empty()) {
        const auto kind = static_cast<FactKind>(bytes.byte());
        const std::uint32_t owner = bytes.byte();
        const std::string_view fact = bytes.piece();
        FactHead fact_head{{}, sizeof(FactHead) + fact.size(), fact.size(), kind, owner};
        std::memcpy(fact_head.magic, kMagic, sizeof kMagic);
        add(file, fact_head);
        file += fact;
        if (kind == FactKind{}) return file += bytes.rest();
    }
    return file;
}

}  // namespace

DDP_FUZZ_TARGET(record, input) {
    Reader bytes(input);
    const std::string file = contents(bytes);
    try {
        const std::vector<ProcessRecord> records{parse_record(file, "file")};
        for (const Group& group : find_groups(records, {})) {
            find_cause(group, 0);
            rank_lines(group);
            find_pace(group);
        }
    } catch (const std::runtime_error& error) {
        check(std::string_view(error.what()).starts_with("file is not a record"), "another error than the reader's");
    }
}

}  // namespace fuzz::record
