#include "why/folder.h"

#include <fcntl.h>

#include <charconv>
#include <exception>
#include <filesystem>
#include <iterator>
#include <set>
#include <stdexcept>

#include "util/host.h"
#include "util/private_file.h"
#include "util/text.h"
#include "why/bytes.h"
#include "why/reader.h"
#include "why/sights.h"

namespace libddp::record {
namespace {

namespace fs = std::filesystem;

// Removes the records of which the function says so, from what their heads tell.
template <class Function>
void remove_records(const std::string& folder, Function is_unwanted) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        const fs::path& path = entry.path();
        if (path.extension() != kSuffix) continue;
        try {
            if (is_unwanted(read_head(path.string()))) fs::remove(path, ignored);
        } catch (const std::exception&) {  // no record of libddp's
        }
    }
}

// Adds the lines that the file does not have: another launcher of this host, or of a folder that
// hosts share, may have written it.
void add_lines(const fs::path& path, const std::string& text) {
    std::set<std::string> there;
    FileIn file(path);
    for (std::string line; std::getline(file, line);) there.insert(line);
    std::string missing;
    TextIn lines(text);
    for (std::string line; std::getline(lines, line);)
        if (there.insert(line).second) missing += line + '\n';
    if (!missing.empty()) write_private_file(path, O_APPEND, missing);
}

std::string text_of(const fs::path& path) {
    FileIn file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void forget_earlier(const std::string& folder) {
    bool any_runs = false;  // of another launcher of this host
    remove_records(folder, [&](const ProcessRecord& record) {
        if (!fs::path(record.path).filename().string().starts_with(host_name() + ".")) return false;
        const auto state = process_state(record.identity.pid);
        const bool runs = state && state->started == record.identity.started;
        any_runs = any_runs || runs;
        return !runs;
    });
    std::error_code ignored;
    if (!any_runs) fs::remove(sights_path(folder), ignored);
}

void forget_all(const std::string& folder) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        const fs::path& path = entry.path();
        if (path.extension() == kSuffix || holds_sights(path.filename().string()))
            fs::remove(path, ignored);
    }
}

void forget_before(const std::string& folder, std::int32_t launch_rank, std::int64_t realtime_ns) {
    remove_records(folder, [&](const ProcessRecord& record) {
        return record.identity.launch_rank == launch_rank &&
               record.opened_realtime_ns < realtime_ns;
    });
}

std::string pack_records(const std::string& folder, std::uint64_t bytes_each) {
    TextOut packed;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        std::string text;
        try {
            if (holds_sights(name))
                text = text_of(entry.path());
            else if (entry.path().extension() == kSuffix)
                text = shorten_record(entry.path().string(), bytes_each);
        } catch (const std::runtime_error&) {  // no record of libddp's
        }
        if (!text.empty()) packed << name << '\n' << text.size() << '\n' << text;
    }
    return packed.str();
}

void unpack_records(const std::string& folder, std::string_view packed) {
    Bytes bytes(packed);
    while (!bytes.empty()) {
        const std::string name = bytes.text('\n'), size = bytes.text('\n');
        std::uint64_t count = 0;
        const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), count);
        const bool known = holds_sights(name) || name.ends_with(kSuffix);
        if (error != std::errc() || end != size.data() + size.size() || !known ||
            name.find('/') != std::string::npos)
            throw std::runtime_error("they cannot be read");
        const std::string_view text = bytes.take(count);
        const fs::path path = fs::path(folder) / name;
        if (holds_sights(name))
            add_lines(path, std::string(text));
        else if (!fs::exists(path))
            write_private_file(path, O_EXCL, text);
    }
}

}  // namespace libddp::record
