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
    OpenSave(std::string folder, const SaveName& name) : folder_(std::move(folder)) {
        for (std::int32_t rank = 0; rank < name.world; ++rank) {
            files_.push_back(StateHeader::read(path(name, rank)));
            const StateFacts& facts = files_.back().facts;
            if (facts.save != name.save || facts.rank != rank || facts.world != name.world)
                fail_call(DDP_ERROR_IO, path(name, rank), " says that it is of rank ", facts.rank,
                          " of ", facts.world, " in save ", facts.save);
            for (const auto& [param, shape] : facts.shapes)
                if (shapes_.emplace(param, shape).first->second != shape)
                    fail_call(DDP_ERROR_IO, "files of the save have other shapes of '", param, "'");
            paths_.push_back(path(name, rank));
            for (const StateEntry& entry : files_.back().entries)
                arrays_[{entry.param, entry.key}].push_back({rank, entry});
        }
        for (auto& [of, parts] : arrays_) check(of, parts);
    }

    const std::string& note() const { return files_.front().facts.note; }

    // For all of the arrays: the bytes of each file to read.
    std::vector<std::vector<FileCopy>> copies(const std::vector<StateArray>& arrays,
                                              const ParamTable& table) const {
        std::vector<std::vector<FileCopy>> copies(files_.size());
        for (const StateArray& array : arrays) {
            if (array.count == 0) continue;
            const auto& parts = find(array, table[array.param]);
            std::int64_t next = array.first;
            const std::int64_t end = array.first + array.count;
            for (const Part& part : parts) {
                const StateEntry& entry = part.entry;
                if (next == end || entry.first + entry.count <= next) continue;
                const std::int64_t count = std::min(end, entry.first + entry.count) - next;
                const auto size = dtype_size(array.dtype);
                copies[static_cast<std::size_t>(part.rank)].push_back(
                    {entry.offset + static_cast<std::uint64_t>(next - entry.first) * size,
                     static_cast<std::size_t>(count) * size,
                     array.data + static_cast<std::size_t>(next - array.first) * size});
                next += count;
            }
            if (next != end)
                mismatch(array.param, "elements ", next, " to ", end - 1, " of '", array.key,
                         "' of '", table[array.param].name, "' are missing: saved are 0 to ",
                         next - 1);
        }
        return copies;
    }

    void read(const std::vector<std::vector<FileCopy>>& copies) const {
        for (std::size_t rank = 0; rank < files_.size(); ++rank)
            read_state_file(paths_[rank], files_[rank], copies[rank]);
    }

private:
    struct Part {
        std::int32_t rank;
        StateEntry entry;
    };
    using Key = std::pair<std::string, std::string>;

    template <class... Text>
    [[noreturn]] static void mismatch(std::int32_t param, const Text&... text) {
        throw CallError({DDP_ERROR_MISMATCH, str(text...), -1, param});
    }

    std::string path(const SaveName& name, std::int32_t rank) const {
        return folder_ + "/" + file_name(name.save, rank, name.world);
    }

    // From 0 on, each element once.
    static void check(const Key& of, std::vector<Part>& parts) {
        std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
            return std::tie(a.entry.first, a.rank) < std::tie(b.entry.first, b.rank);
        });
        std::int64_t next = 0;
        std::int32_t before = parts.front().rank;
        for (const auto& [rank, entry] : parts) {
            if (entry.dtype != parts.front().entry.dtype)
                mismatch(-1, "'", of.second, "' of '", of.first, "' is ",
                         dtype_name(parts.front().entry.dtype), " on rank ", parts.front().rank,
                         " and ", dtype_name(entry.dtype), " on rank ", rank);
            if (entry.first > next)
                mismatch(-1, "elements ", next, " to ", entry.first - 1, " of '", of.second,
                         "' of '", of.first, "' were saved by no rank");
            if (entry.first < next)
                mismatch(-1, "element ", entry.first, " of '", of.second, "' of '", of.first,
                         "' was saved by rank ", before, " and by rank ", rank,
                         "; are these replicated?");
            next += entry.count;
            before = rank;
        }
    }

    const std::vector<Part>& find(const StateArray& array, const Param& p) const {
        const auto shape = shapes_.find(p.name);
        if (shape == shapes_.end())
            mismatch(array.param, "parameter '", p.name, "' is not in the save",
                     shapes_.empty() ? ", which is empty"
                                     : str("; it has '", shapes_.begin()->first, "'",
                                           shapes_.size() > 1 ? " and others" : ""));
        if (shape->second != p.shape)
            mismatch(array.param, "parameter '", p.name, "' was saved with the shape ",
                     Json(shape->second).dump(), " and has ", Json(p.shape).dump());
        const auto found = arrays_.find({p.name, array.key});
        if (found == arrays_.end()) {
            std::string keys;
            for (const auto& [of, parts] : arrays_)
                if (of.first == p.name) keys += str(keys.empty() ? "'" : ", '", of.second, "'");
            mismatch(array.param, "'", p.name, "' was saved without '", array.key, "'; it has ",
                     keys);
        }
        const ddp_dtype saved = found->second.front().entry.dtype;
        if (saved != array.dtype)
            mismatch(array.param, "'", array.key, "' of '", p.name, "' was saved as ",
                     dtype_name(saved), "; the array is ", dtype_name(array.dtype));
        return found->second;
    }

    const std::string folder_;
    std::vector<StateHeader> files_;  // by rank
    std::vector<std::string> paths_;
    std::map<std::string, std::vector<std::int64_t>> shapes_;
    std::map<Key, std::vector<Part>> arrays_;  // parts in the order of elements
};

// Ranks that do a part each, and go on together or not at all.
class Together {
public:
    explicit Together(const Context& context)
        : group_(*context.group()), tag_(context.number().tag(Purpose::kShardState)) {}

    bool first() const { return group_.rank() == 0; }
    // Whether no rank goes on after what has failed.
    bool all_know() const { return all_know_; }

    // From rank 0 to all.
    template <class Value>
    void share(Value& value) {
        if (group_.world() > 1)
            group_.run(
                {DDP_COLLECTIVE_BROADCAST, nullptr, &value, sizeof value, DDP_U8, DDP_SUM, 0},
                tag_);
    }

    // All ranks' values, one rank after another.
    template <class Value>
    std::vector<Value> gather(const std::vector<Value>& mine) {
        std::vector<Value> all(mine.size() * static_cast<std::size_t>(group_.world()));
        if (group_.world() == 1) return mine;
        group_.run({DDP_COLLECTIVE_ALLGATHER, mine.data(), all.data(), mine.size() * sizeof(Value),
                    DDP_U8},
                   tag_);
        return all;
    }

    // Throws, on all ranks, the error of the first rank on which `part` threw.
    void run(const std::function<void()>& part) {
        Outcome mine;
        try {
            part();
        } catch (...) {
            const ErrorInfo error = caught();
            mine.code = error.code;
            mine.param = error.param;
            // A cut character is printed as bytes.
            error.message.copy(mine.message, sizeof mine.message - 1);
        }
        std::vector<Outcome> all(static_cast<std::size_t>(group_.world()), mine);
        if (group_.world() > 1)
            group_.run({DDP_COLLECTIVE_ALLGATHER, &mine, all.data(), sizeof mine, DDP_U8}, tag_);
        const auto failed = std::find_if(all.begin(), all.end(),
                                         [](const Outcome& one) { return one.code != DDP_OK; });
        if (failed == all.end()) return;
        all_know_ = true;
        let_all_hear();
        const auto rank = static_cast<std::int32_t>(failed - all.begin());
        throw CallError({failed->code,
                         str(all.size() > 1 ? str("rank ", rank, ": ") : "", failed->message), rank,
                         failed->param});
    }

private:
    struct Outcome {
        ddp_status code = DDP_OK;
        std::int32_t param = -1;
        char message[1016] = {};
    };
    static_assert(sizeof(Outcome) == 1024, "it travels as bytes: no padding");

    // The first to throw may end, and with it the group, while others still hear what failed.
    void let_all_hear() {
        try {
            if (group_.world() > 1) group_.run({DDP_COLLECTIVE_BARRIER}, tag_);
        } catch (const Error& error) {
            if (error.info().code == DDP_ERROR_INTERRUPTED) throw;
        }
    }

    Group& group_;
    const OpTag tag_;
    bool all_know_ = false;
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
        const auto counts = together.gather(std::vector<std::uint64_t>{mine.size()});
        const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
        mine.resize(most);
        const auto all = most > 0 ? together.gather(mine) : mine;
        for (std::size_t r = 0; r < static_cast<std::size_t>(rank); ++r)
            for (std::size_t i = 0; i < counts[r]; ++i)
                lower_.emplace(all[r * most + i].name, std::pair(r, all[r * most + i].content));
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
    Together together(context);
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
        together.share(shared);
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
    Together together(context);
    SaveName name;
    together.run([&] {
        wait_for_values(context);
        context.committed().require_idle();
        if (together.first()) name = read_index(folder);
    });
    together.share(name);
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
