// The record of a process as a damaged disk or somebody else left it, and what the tools make of
// it.
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "why/cause.h"
#include "why/lateness.h"
#include "why/reader.h"

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

// Most of a file is empty. The input holds what is not: the head, some events, and facts, each
// behind its kind and owner.
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

struct Folder {
    Folder() { check(mkdtemp(path.data()) != nullptr, "there is no folder"); }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path = "/tmp/fuzz-record-XXXXXX";
};

}  // namespace

DDP_FUZZ_TARGET(record, input) {
    static const Folder folder;
    const std::string path = folder.path + "/x.record";
    Reader bytes(input);
    std::filesystem::remove(path);  // a file system may take its time where a file gets shorter
    std::ofstream(path, std::ios::binary) << contents(bytes);
    std::vector<std::string> complaints;
    const std::vector<ProcessRecord> records = read_records(folder.path, complaints);
    for (const std::string& complaint : complaints)
        check(complaint.starts_with(path + " is not a record"), "another error than the reader's");
    for (const Group& group : find_groups(records, {})) {
        group_text(group, 0);
        find_pace(group);
    }
}

}  // namespace fuzz::record
