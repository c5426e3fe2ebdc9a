#include "core/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/dtype.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/private_file.h"

namespace libddp {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "libddp-shard";
constexpr const char* kVersion = "1";
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kChecksumDigits = 16;

struct TypeName {
    ddp_dtype dtype;
    const char* name;
    std::int64_t parts;  // numbers of an element
};
// The format does not know all complex numbers: they are pairs.
constexpr std::array<TypeName, 9> kTypes{{{DDP_F16, "F16", 1},
                                          {DDP_BF16, "BF16", 1},
                                          {DDP_F32, "F32", 1},
                                          {DDP_F64, "F64", 1},
                                          {DDP_I32, "I32", 1},
                                          {DDP_I64, "I64", 1},
                                          {DDP_U8, "U8", 1},
                                          {DDP_C64, "F32", 2},
                                          {DDP_C128, "F64", 2}}};

const TypeName& type_name(ddp_dtype dtype) {
    return *std::find_if(kTypes.begin(), kTypes.end(),
                         [&](const TypeName& type) { return type.dtype == dtype; });
}

[[noreturn]] void cannot(const char* what, const std::string& path, int error) {
    fail_call(DDP_ERROR_IO, "cannot ", what, " ", path, ": ", std::strerror(error),
              lacks_descriptors(error) ? kRaiseOpenFiles : "");
}

template <class... Parts>
[[noreturn]] void damaged(const Parts&... parts) {
    fail_call(DDP_ERROR_IO, "damaged: ", parts...);
}

std::uint64_t chunks_of(std::uint64_t bytes) {
    return (bytes + StateHeader::kChunk - 1) / StateHeader::kChunk;
}

std::string hexadecimal(std::uint64_t number) {
    std::string text(kChecksumDigits, '0');
    for (std::size_t i = kChecksumDigits; i-- > 0; number >>= 4)
        text[i] = "0123456789abcdef"[number & 15];
    return text;
}

void write_at(int fd, const std::string& path, std::string_view bytes, std::uint64_t at) {
    while (!bytes.empty()) {
        const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
        if (count < 0 && errno != EINTR) cannot("write", path, errno);
        if (count <= 0) continue;
        bytes.remove_prefix(static_cast<std::size_t>(count));
        at += static_cast<std::uint64_t>(count);
    }
}

void read_at(int fd, const std::string& path, std::byte* to, std::size_t bytes, std::uint64_t at) {
    while (bytes > 0) {
        const ssize_t count = pread(fd, to, bytes, static_cast<off_t>(at));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) cannot("read", path, errno);
        if (count == 0) fail_call(DDP_ERROR_IO, path, " became shorter while it was read");
        to += count;
        bytes -= static_cast<std::size_t>(count);
        at += static_cast<std::uint64_t>(count);
    }
}

Descriptor open_to_read(const std::string& path, std::uint64_t& size) {
    Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat facts {};
    if (!file || fstat(file.get(), &facts) != 0) cannot("open", path, errno);
    if (!S_ISREG(facts.st_mode)) fail_call(DDP_ERROR_IO, path, " is no file");
    size = static_cast<std::uint64_t>(facts.st_size);
    return file;
}

// The elements of arrays on their way to a file, a chunk at a time.
class ChunkWriter {
public:
    ChunkWriter(int fd, const std::string& path, std::uint64_t begin)
        : fd_(fd), path_(path), at_(begin), chunk_(StateHeader::kChunk) {}

    void write(const std::byte* data, std::size_t bytes) {
        while (bytes > 0) {
            const std::size_t part = std::min(bytes, chunk_.size() - used_);
            std::memcpy(chunk_.data() + used_, data, part);
            used_ += part;
            data += part;
            bytes -= part;
            if (used_ == chunk_.size()) flush();
        }
    }
    // The checksums of all chunks.
    std::string end() {
        if (used_ > 0) flush();
        return checksums_;
    }

private:
    void flush() {
        checksums_ += hexadecimal(hash_of(chunk_.data(), used_));
        write_at(fd_, path_, {reinterpret_cast<const char*>(chunk_.data()), used_}, at_);
        at_ += used_;
        used_ = 0;
    }

    const int fd_;
    const std::string& path_;
    std::uint64_t at_;
    std::vector<std::byte> chunk_;
    std::size_t used_ = 0;
    std::string checksums_;
};

// Elements are aligned where those of larger types come first.
void sort_for_file(std::vector<StateArray>& arrays) {
    const auto place = [](const StateArray& a) {
        return std::tuple(-static_cast<std::int64_t>(dtype_alignment(a.dtype)), a.param,
                          std::string_view(a.key), a.first);
    };
    std::sort(arrays.begin(), arrays.end(),
              [&](const StateArray& a, const StateArray& b) { return place(a) < place(b); });
}

Json header_of(const StateFacts& facts, const std::vector<StateArray>& arrays,
               const ParamTable& table) {
    Json header = Json::object(), shapes = Json::object();
    std::uint64_t end = 0;
    for (const StateArray& array : arrays) {
        const Param& p = table[array.param];
        const TypeName& type = type_name(array.dtype);
        Json shape = Json::array({array.count});
        if (type.parts > 1) shape.push_back(type.parts);
        header[str(p.name, "/", array.key, "@", array.first)] = {
            {"dtype", type.name},
            {"shape", std::move(shape)},
            {"data_offsets", {end, end + array.bytes()}}};
        shapes[p.name] = p.shape;
        end += array.bytes();
    }
    header["__metadata__"] = {{"format", kFormat},
                              {"version", kVersion},
                              {"save", facts.save},
                              {"rank", std::to_string(facts.rank)},
                              {"world", std::to_string(facts.world)},
                              {"note", facts.note},
                              {"shapes", shapes.dump()},
                              {"checksums", std::string(kChecksumDigits * chunks_of(end), '0')}};
    return header;
}

void write_elements(int fd, const std::string& path, Json& header,
                    const std::vector<StateArray>& arrays) {
    // Checksums have as many digits when they are known.
    std::string text = header.dump();
    const std::uint64_t length = (text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes;
    if (length > StateHeader::kMost)
        fail_call(DDP_ERROR_LIMIT, "the header of ", path, " would have ", length,
                  " bytes; the safetensors format allows ", StateHeader::kMost);
    ChunkWriter elements(fd, path, kLengthBytes + length);
    for (const StateArray& array : arrays) elements.write(array.data, array.bytes());
    header["__metadata__"]["checksums"] = elements.end();
    text = header.dump();
    text.resize(length, ' ');
    text.insert(0, reinterpret_cast<const char*>(&length), kLengthBytes);
    write_at(fd, path, text, 0);
    if (fsync(fd) != 0) cannot("write", path, errno);
}

class HeaderParser {
public:
    explicit HeaderParser(std::uint64_t bytes) { result_.bytes = bytes; }

    StateHeader parse(std::string_view text) {
        // An object with a key twice means something else to each reader.
        std::size_t keys = 0;
        if (text.empty() || text.front() != '{') damaged("its header is no JSON object");
        header_ = Json::parse(
            text.begin(), text.end(),
            [&](int depth, Json::parse_event_t event, Json&) {
                keys += event == Json::parse_event_t::key;
                return depth <= 3;
            },
            /*allow_exceptions=*/false);
        if (!header_.is_object()) damaged("its header is no JSON object in UTF-8");
        for (const auto& item : header_.items())
            keys -= 1 + (item.value().is_object() ? item.value().size() : 0);
        if (keys != 0) damaged("its header has a key twice, or more in it than safetensors have");
        read_facts();
        for (const auto& [name, entry] : header_.items())
            if (name != kMetadata) add(name, entry);
        check_offsets();
        return std::move(result_);
    }

private:
    static constexpr const char* kMetadata = "__metadata__";

    std::string text(const char* key) const {
        const Json& metadata = header_.at(kMetadata);
        const auto found = metadata.find(key);
        if (found == metadata.end() || !found->is_string())
            damaged("its header has no '", key, "'");
        return found->get<std::string>();
    }

    template <class Number>
    static Number number(std::string_view text, const char* what, int base = 10) {
        Number value{};
        const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
        if (text.empty() || end.ec != std::errc() || end.ptr != text.data() + text.size() ||
            value < 0)
            damaged("'", text, "' is no ", what);
        return value;
    }

    // From 1e30 the JSON library would make an integer, too, but which one is undefined.
    static std::vector<std::int64_t> numbers(const Json& list, const char* what) {
        std::vector<std::int64_t> result;
        if (!list.is_array()) damaged(what, " is no list");
        for (const Json& number : list) {
            if (!number.is_number_integer() || number.get<std::int64_t>() < 0)
                damaged(what, " is no list of sizes");
            result.push_back(number.get<std::int64_t>());
        }
        return result;
    }

    void read_facts() {
        if (!header_.contains(kMetadata) || !header_.at(kMetadata).is_object() ||
            header_.at(kMetadata).value("format", Json()) != kFormat)
            fail_call(DDP_ERROR_IO, "no file of ddp_shard_save: its header does not say '", kFormat,
                      "'");
        if (text("version") != kVersion)
            fail_call(DDP_ERROR_IO, "of version '", text("version"), "'; this library reads ",
                      kVersion);
        StateFacts& facts = result_.facts;
        facts.save = text("save");
        facts.rank = number<std::int32_t>(text("rank"), "rank");
        facts.world = number<std::int32_t>(text("world"), "world");
        facts.note = text("note");
        const Json shapes = Json::parse(text("shapes"), nullptr, false);
        if (!shapes.is_object()) damaged("its shapes are no JSON object");
        for (const auto& [name, shape] : shapes.items())
            facts.shapes[name] = numbers(shape, "a shape");
        const std::string checksums = text("checksums");
        if (checksums.size() != kChecksumDigits * chunks_of(result_.bytes))
            damaged("it has ", result_.bytes, " bytes of elements, and checksums of ",
                    checksums.size() / kChecksumDigits, " times ", StateHeader::kChunk,
                    "; was it cut short?");
        for (std::size_t at = 0; at < checksums.size(); at += kChecksumDigits)
            result_.checksums.push_back(number<std::uint64_t>(
                std::string_view(checksums).substr(at, kChecksumDigits), "checksum", 16));
    }

    void add(const std::string& name, const Json& entry) {
        const std::size_t at = name.rfind('@'),
                          slash = at == std::string::npos ? at : name.rfind('/', at);
        if (slash == std::string::npos) damaged("'", name, "' is no PARAMETER/KEY@FIRST");
        StateEntry found{name.substr(0, slash), name.substr(slash + 1, at - slash - 1)};
        found.first = number<std::int64_t>(std::string_view(name).substr(at + 1), "first element");
        if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
            !entry.contains("data_offsets"))
            damaged("'", name, "' lacks dtype, shape or data_offsets");
        const auto shape = numbers(entry.at("shape"), "a shape"),
                   range = numbers(entry.at("data_offsets"), "data_offsets");
        const auto parts = shape.size() == 2 ? 2 : 1;
        const auto type = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& known) {
            return entry.at("dtype") == known.name && known.parts == parts;
        });
        if (type == kTypes.end())
            damaged("'", name, "' has a dtype or a shape that libddp does not write");
        if (shape.empty() || shape.size() > 2 || (shape.size() == 2 && shape[1] != 2) ||
            shape[0] == 0)
            damaged("'", name, "' has a shape that libddp does not write");
        found.count = shape[0];
        found.dtype = type->dtype;
        if (range.size() != 2 || range[0] > range[1] ||
            static_cast<std::uint64_t>(range[1]) > result_.bytes)
            damaged("'", name, "' is not within the ", result_.bytes,
                    " bytes of elements; was the file cut short?");
        const auto size = static_cast<std::int64_t>(dtype_size(found.dtype));
        if ((range[1] - range[0]) % size != 0 || (range[1] - range[0]) / size != found.count)
            damaged("'", name, "' has ", found.count, " elements in ", range[1] - range[0],
                    " bytes");
        found.offset = static_cast<std::uint64_t>(range[0]);
        check_range(name, found);
        result_.entries.push_back(std::move(found));
    }

    void check_range(const std::string& name, const StateEntry& entry) const {
        const auto shape = result_.facts.shapes.find(entry.param);
        if (shape == result_.facts.shapes.end()) damaged("'", name, "' has no shape");
        std::int64_t elements = 1;
        for (const std::int64_t extent : shape->second)
            if (__builtin_mul_overflow(elements, extent, &elements))
                damaged("a shape is too large");
        if (entry.first > elements || entry.count > elements - entry.first)
            damaged("'", name, "' has ", entry.count, " elements of a parameter of ", elements);
    }

    // Each byte belongs to one entry.
    void check_offsets() const {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
        for (const StateEntry& entry : result_.entries)
            ranges.emplace_back(entry.offset,
                                static_cast<std::uint64_t>(entry.count) * dtype_size(entry.dtype));
        std::sort(ranges.begin(), ranges.end());
        std::uint64_t end = 0;
        for (const auto& [offset, bytes] : ranges) {
            if (offset != end) damaged("byte ", std::min(offset, end), " has no tensor, or two");
            end += bytes;
        }
        if (end != result_.bytes)
            damaged("it has ", result_.bytes, " bytes of elements and its tensors have ", end,
                    "; was it cut short?");
    }

    Json header_;
    StateHeader result_;
};

}  // namespace

std::size_t StateArray::bytes() const {
    return static_cast<std::size_t>(count) * dtype_size(dtype);
}

StateHeader StateHeader::parse(std::string_view text, std::uint64_t bytes) {
    return HeaderParser(bytes).parse(text);
}

StateHeader StateHeader::read(const std::string& path) {
    std::uint64_t size = 0, length = 0;
    const Descriptor file = open_to_read(path, size);
    const auto too_short = [&] {
        fail_call(DDP_ERROR_IO, path, " is cut short, or no safetensors file: it has ", size,
                  " bytes");
    };
    if (size < kLengthBytes) too_short();
    read_at(file.get(), path, reinterpret_cast<std::byte*>(&length), kLengthBytes, 0);
    if (length > kMost)
        fail_call(DDP_ERROR_IO, path, " is damaged, or no safetensors file: its header would have ",
                  length, " bytes");
    if (length > size - kLengthBytes) too_short();
    std::string text(length, '\0');
    read_at(file.get(), path, reinterpret_cast<std::byte*>(text.data()), length, kLengthBytes);
    try {
        StateHeader header = parse(text, size - kLengthBytes - length);
        header.begin = kLengthBytes + length;
        return header;
    } catch (const CallError& error) {
        fail_call(error.info().code, path, " is ", error.info().message);
    }
}

void write_state_file(const std::string& path, const StateFacts& facts,
                      std::vector<StateArray> arrays, const ParamTable& table) {
    constexpr mode_t kOfAll = 0666;  // as far as the process's umask lets them
    sort_for_file(arrays);
    Json header = header_of(facts, arrays, table);
    const WriteSignalsHeld held;
    const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOfAll));
    if (!file) cannot("make", path, errno);
    try {
        write_elements(file.get(), path, header, arrays);
    } catch (...) {
        unlink(path.c_str());
        throw;
    }
}

void read_state_file(const std::string& path, const StateHeader& header,
                     std::vector<FileCopy> copies) {
    constexpr std::uint64_t kChunk = StateHeader::kChunk;
    if (copies.empty()) return;
    std::uint64_t size = 0;
    const Descriptor file = open_to_read(path, size);
    std::sort(copies.begin(), copies.end(),
              [](const FileCopy& a, const FileCopy& b) { return a.offset < b.offset; });
    std::vector<std::byte> chunk(kChunk);
    std::uint64_t loaded = UINT64_MAX;  // the chunk in memory
    for (FileCopy copy : copies) {
        while (copy.bytes > 0) {
            const std::uint64_t index = copy.offset / kChunk, begin = index * kChunk;
            const auto bytes = static_cast<std::size_t>(std::min(kChunk, header.bytes - begin));
            if (index != loaded) {
                read_at(file.get(), path, chunk.data(), bytes, header.begin + begin);
                if (hash_of(chunk.data(), bytes) != header.checksums[index])
                    fail_call(DDP_ERROR_IO, path, " is damaged: bytes ", header.begin + begin,
                              " to ", header.begin + begin + bytes - 1,
                              " do not have the checksum with which they were saved");
                loaded = index;
            }
            const auto skipped = static_cast<std::size_t>(copy.offset - begin);
            const std::size_t part = std::min(copy.bytes, bytes - skipped);
            std::memcpy(copy.to, chunk.data() + skipped, part);
            copy.offset += part;
            copy.bytes -= part;
            copy.to += part;
        }
    }
}

void replace_file(const std::string& path, std::string_view text) {
    const std::string beside = path + ".part";
    const WriteSignalsHeld held;
    {
        const Descriptor file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
        if (!file) cannot("make", beside, errno);
        if (const int error = write_all(file.get(), text); error != 0)
            cannot("write", beside, error);
        if (fsync(file.get()) != 0) cannot("write", beside, errno);
    }
    if (rename(beside.c_str(), path.c_str()) != 0) cannot("replace", path, errno);
}

void sync_folder(const std::string& folder) {
    const Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened) cannot("open", folder, errno);
    // File systems that cannot do it for folders say EINVAL.
    if (fsync(opened.get()) != 0 && errno != EINVAL) cannot("write", folder, errno);
}

}  // namespace libddp
