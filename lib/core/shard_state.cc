#include "core/shard_state.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "core/saved_parts.h"
#include "core/together.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/log.h"
#include "util/printable.h"
#include "util/random.h"

namespace libddp {
namespace {

using Json = nlohmann::json;

constexpr const char* kIndex = "shards.json";
constexpr const char* kIndexFormat = "libddp-shards-1";
constexpr const char *kPrefix = "shard-", *kSuffix = ".safetensors";
constexpr std::size_t kSaveDigits = 16;

std::string numbered(std::int32_t number) {
    const std::string text = std::to_string(number);
    return std::string(5 - std::min<std::size_t>(5, text.size()), '0') + text;
}

std::string file_name(const std::string& save, std::int32_t rank, std::int32_t world) {
    return str(kPrefix, numbered(rank), "-of-", numbered(world), "-", save, kSuffix);
}

bool is_save(std::string_view text) {
    return text.size() == kSaveDigits &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The save to which a file belongs; empty: it is none of ours.
std::string save_of(std::string_view name) {
    const std::size_t length = std::strlen(kSuffix) + kSaveDigits;
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.size() < length) return "";
    const std::string_view save = name.substr(name.size() - length, kSaveDigits);
    return is_save(save) ? std::string(save) : "";
}

std::vector<std::string> shard_files(const std::string& folder) {
    std::vector<std::string> names;
    const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(folder.c_str()), &closedir);
    if (!opened) return names;
    while (const dirent* entry = readdir(opened.get()))
        if (!save_of(entry->d_name).empty()) names.emplace_back(entry->d_name);
    std::sort(names.begin(), names.end());
    return names;
}

struct SaveName {
    char save[kSaveDigits + 4] = {};
    std::int32_t world = 0;
};

[[noreturn]] void no_save(const std::string& folder) {
    std::string there;
    for (const std::string& name : shard_files(folder))
        there += str(there.empty() ? "" : ", ", name);
    fail_call(DDP_ERROR_NOT_FOUND, folder, " holds no complete save: there is no ", kIndex,
              there.empty() ? "" : ". Of a save that did not come to its end there are: ", there);
}

SaveName read_index(const std::string& folder) {
    const std::string path = folder + "/" + kIndex;
    if (access(path.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) no_save(folder);
    FileIn file(path);
    if (!file) fail_call(DDP_ERROR_IO, "cannot read ", path, ": ", std::strerror(errno));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const Json index = Json::parse(text, nullptr, false);
    SaveName name;
    if (!index.is_object() || index.value("format", Json()) != kIndexFormat)
        fail_call(DDP_ERROR_IO, path, " is not of ddp_shard_save: it does not say '", kIndexFormat,
                  "'");
    const Json save = index.value("save", Json()), world = index.value("world", Json());
    if (!save.is_string() || !is_save(save.get<std::string>()) || !world.is_number_integer() ||
        world.get<std::int64_t>() < 1 || world.get<std::int64_t>() > INT32_MAX)
        fail_call(DDP_ERROR_IO, path, " is damaged");
    save.get<std::string>().copy(name.save, kSaveDigits);
    name.world = world.get<std::int32_t>();
    return name;
}

// All that the files of a save say of themselves.
class OpenSave {
public:
    OpenSave(std::string folder, const SaveName& name)
        : folder_(std::move(folder)), parts_(name.world) {
        for (std::int32_t rank = 0; rank < name.world; ++rank) {
            files_.push_back(StateHeader::read(path(name, rank)));
            const StateFacts& facts = files_.back().facts;
            if (facts.save != name.save || facts.rank != rank || facts.world != name.world)
                fail_call(DDP_ERROR_IO, path(name, rank), " says that it is of rank ", facts.rank,
                          " of ", facts.world, " in save ", facts.save);
            for (const auto& [param, shape] : facts.shapes)
                if (!parts_.add_shape(param, shape))
                    fail_call(DDP_ERROR_IO, "files of the save have other shapes of '", param, "'");
            paths_.push_back(path(name, rank));
            for (const StateEntry& entry : files_.back().entries) parts_.add(rank, entry);
        }
        parts_.check();
    }

    const std::string& note() const { return files_.front().facts.note; }

    std::vector<std::vector<FileCopy>> copies(const std::vector<StateArray>& arrays,
                                              const ParamTable& table) const {
        return parts_.copies(arrays, table);
    }

    void read(const std::vector<std::vector<FileCopy>>& copies) const {
        for (std::size_t rank = 0; rank < files_.size(); ++rank)
            read_state_file(paths_[rank], files_[rank], copies[rank]);
    }

private:
    std::string path(const SaveName& name, std::int32_t rank) const {
        return folder_ + "/" + file_name(name.save, rank, name.world);
    }

    const std::string folder_;
    std::vector<StateHeader> files_;  // by rank
    std::vector<std::string> paths_;
    SavedParts parts_;
};

// Which rank saves an array that several have.
class Replicas {
public:
    // Collective.
    Replicas(Together& together, const std::vector<StateArray>& arrays, std::int32_t rank) {
        std::vector<Replica> mine;
        for (const StateArray& array : arrays)
            if (array.replicated)
                mine.push_back({name_of(array), hash_of(array.data, array.bytes())});
        const auto all = together.gather_lists(std::move(mine));
        for (std::size_t r = 0; r < static_cast<std::size_t>(rank); ++r)
            for (const Replica& one : all[r]) lower_.emplace(one.name, std::pair(r, one.content));
    }

    // Whether no lower rank has it. Throws MISMATCH if one has something else there.
    bool saved_here(const StateArray& array, const ParamTable& table) const {
        const auto found = lower_.find(array.replicated ? name_of(array) : 0);
        if (!array.replicated || found == lower_.end()) return true;
        if (found->second.second != hash_of(array.data, array.bytes()))
            throw CallError(
                {DDP_ERROR_MISMATCH,
                 str("'", array.key, "' of '", table[array.param].name,
                     "' is replicated, and has other bits on rank ", found->second.first),
                 -1, array.param});
        return false;
    }

private:
    struct Replica {
        std::uint64_t name = 0, content = 0;
    };
    static std::uint64_t name_of(const StateArray& array) {
        return Hash()
            .add(array.key)
            .add(static_cast<std::uint64_t>(array.param))
            .add(static_cast<std::uint64_t>(array.first))
            .add(static_cast<std::uint64_t>(array.count))
            .value();
    }

    std::map<std::uint64_t, std::pair<std::size_t, std::uint64_t>> lower_;  // by name
};

// Values that others send come before those of a file, and are in the program's memory.
void wait_for_values(const Context& context) {
    Reducer& reducer = context.committed();
    for (std::int32_t p = 0; p < context.model().table.size(); ++p)
        reducer.results().wait_value(p, std::nullopt);
}

void require_text(const std::string& text, const std::string& name) {
    if (printable(text, "\t\n\r") != text)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, name, " is ", in_quotes(text),
                  "; it must be UTF-8 without control characters");
}

void make_folder(const std::string& folder) {
    if (mkdir(folder.c_str(), 0777) == 0) return sync_folder(folder + "/..");
    if (errno != EEXIST)
        fail_call(DDP_ERROR_IO, "cannot make ", folder, ": ", std::strerror(errno));
}

void remove_other_saves(const std::string& folder, const std::string& save) {
    for (const std::string& name : shard_files(folder))
        if (save_of(name) != save && unlink((folder + "/" + name).c_str()) != 0)
            log(LogLevel::kWarn, "cannot remove ", folder, "/", name,
                ", which is of another save: ", std::strerror(errno));
}

// Saves that did not come to their end would fill the disk.
void remove_remains(const std::string& folder) {
    try {
        remove_other_saves(folder, read_index(folder).save);
    } catch (const Error& error) {
        if (error.info().code == DDP_ERROR_NOT_FOUND) remove_other_saves(folder, "");
    }
}

}  // namespace

void check_state_array(const StateArray& array, const ParamTable& table,
                       const std::vector<StateArray>& others) {
    table.require(array.param);
    const Param& p = table[array.param];
    if (array.key.empty() || array.key.size() > 64 ||
        array.key.find_first_of("/@") != std::string::npos)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "key is ", in_quotes(array.key),
                  "; it must have 1 to 64 bytes, and no '/' or '@'");
    require_text(array.key, "key");
    require_text(p.name, "the name of a parameter");
    if (dtype_size(array.dtype) == 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "dtype ", array.dtype, " is unknown (see types.h)");
    if (array.first < 0 || array.count < 0 || array.first > p.count ||
        array.count > p.count - array.first)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, array.count, " elements from ", array.first, " of '",
                  p.name, "', which has ", p.count);
    if (!array.data && array.count > 0) fail_call(DDP_ERROR_INVALID_ARGUMENT, "data is NULL");
    const auto* value = static_cast<const std::byte*>(p.data);
    if (p.device.kind != DDP_DEVICE_CPU && array.data >= value && array.data < value + p.bytes)
        fail_call(DDP_ERROR_UNSUPPORTED, "the value of '", p.name,
                  "' is on a device; copy it to CPU memory and back");
    for (const StateArray& other : others)
        if (other.param == array.param && other.key == array.key &&
            other.first < array.first + array.count && array.first < other.first + other.count)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", array.key, "' of '", p.name,
                      "' was named with element ", std::max(array.first, other.first), " already");
}

void save_shards(const Context& context, const std::vector<StateArray>& arrays,
                 const std::string& folder, const std::string& note) {
    constexpr std::size_t kMostNote = std::size_t{1} << 20;
    const std::int32_t rank = context.group()->rank(), world = context.group()->world();
    Together together(context, Purpose::kShardState);
    struct {
        SaveName name{};
        std::uint64_t note = 0;
    } shared;
    shared.note = Hash().add(note).value();
    std::string path;
    try {
        together.run([&] {
            wait_for_values(context);
            if (note.size() > kMostNote)
                fail_call(DDP_ERROR_INVALID_ARGUMENT, "note has ", note.size(), " bytes; at most ",
                          kMostNote, " are allowed");
            require_text(note, "note");
            make_folder(folder);
            if (!together.first()) return;
            remove_remains(folder);
            random_text(kSaveDigits / 2).copy(shared.name.save, kSaveDigits);
            shared.name.world = world;
        });
        const std::uint64_t own = shared.note;
        together.share(&shared, sizeof shared);
        const Replicas replicas(together, arrays, rank);
        together.run([&] {
            if (own != shared.note)
                fail_call(DDP_ERROR_MISMATCH, "note is ", in_quotes(note),
                          ", and another one on rank 0");
            std::vector<StateArray> mine;
            for (const StateArray& array : arrays)
                if (array.count > 0 && replicas.saved_here(array, context.model().table))
                    mine.push_back(array);
            const std::string target = folder + "/" + file_name(shared.name.save, rank, world);
            write_state_file(target, {shared.name.save, rank, world, note, {}}, std::move(mine),
                             context.model().table);
            path = target;
            sync_folder(folder);
        });
        // Rank 0 sees what whoever loads will see.
        together.run([&] {
            if (together.first()) OpenSave(folder, shared.name);
        });
    } catch (...) {
        // Where the group broke, rank 0 may have heard that all is well.
        if (!path.empty() && together.all_know()) unlink(path.c_str());
        throw;
    }
    together.run([&] {
        if (!together.first()) return;
        replace_file(
            folder + "/" + kIndex,
            Json({{"format", kIndexFormat}, {"save", shared.name.save}, {"world", world}}).dump() +
                "\n");
        sync_folder(folder);
        remove_other_saves(folder, shared.name.save);
    });
}

std::string load_shards(const Context& context, const std::vector<StateArray>& arrays,
                        const std::string& folder) {
    Together together(context, Purpose::kShardState);
    SaveName name;
    together.run([&] {
        wait_for_values(context);
        context.committed().require_idle();
        if (together.first()) name = read_index(folder);
    });
    together.share(&name, sizeof name);
    std::unique_ptr<OpenSave> save;
    std::vector<std::vector<FileCopy>> copies;
    together.run([&] {
        const SaveName here = read_index(folder);
        if (std::strcmp(here.save, name.save) != 0)
            fail_call(DDP_ERROR_MISMATCH, folder, " holds the save ", here.save, ", and on rank 0 ",
                      name.save, "; is it the same folder?");
        save = std::make_unique<OpenSave>(folder, name);
        copies = save->copies(arrays, context.model().table);
    });
    together.run([&] { save->read(copies); });
    // Else ranks would go on with old values of others.
    if (context.model().options.reducer.shard) {
        context.committed().results().publish();
        wait_for_values(context);
    }
    return save->note();
}

}  // namespace libddp
