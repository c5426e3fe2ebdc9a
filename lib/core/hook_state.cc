#include "core/hook_state.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "device/host_copy.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersion = "1";
constexpr std::size_t kLengthBytes = 8;
// So that the arrays are aligned in memory as they are in the file.
constexpr std::size_t kAlign = 8;

const std::map<ddp_dtype, std::string>& dtype_names() {
    static const std::map<ddp_dtype, std::string> names{
        {DDP_F16, "F16"}, {DDP_BF16, "BF16"}, {DDP_F32, "F32"}, {DDP_F64, "F64"},
        {DDP_I32, "I32"}, {DDP_I64, "I64"},   {DDP_U8, "U8"}};
    return names;
}

// "error:conv1.weight"; ":" alone separates, as keys hold none.
std::string entry_name(const HookState::Array& array, const ParamTable& table) {
    return array.param < 0 ? array.key : str(array.key, ":", table[array.param].name);
}

std::string describe(const Param& p) {
    std::string text = str(dtype_name(p.dtype), "[");
    for (std::size_t i = 0; i < p.shape.size(); ++i) text += str(i ? ", " : "", p.shape[i]);
    text += "]";
    return p.gradient.dtype == p.dtype
               ? text
               : str(text, " with gradients ", dtype_name(p.gradient.dtype));
}

std::string checksum(const std::byte* data, std::size_t size) {
    return str(std::hex, Hash().add({reinterpret_cast<const char*>(data), size}).value());
}

std::size_t padded(std::size_t bytes) {
    return (bytes + kAlign - 1) / kAlign * kAlign;
}

class Reader {
public:
    Reader(const std::byte* file, std::size_t size, const ParamTable& table)
        : file_(file), size_(size), table_(table) {}

    HookState read(const HookStateOwner& owner, bool shared_only) {
        open(owner.kind);
        check_owner(owner, shared_only);
        check_params();
        HookState state;
        const Json numbers = Json::parse(text("numbers"), nullptr, false);
        if (!numbers.is_object()) damaged("numbers");
        for (const auto& [key, value] : numbers.items())
            state.numbers[key] =
                value.is_number_integer() ? value.get<std::int64_t>() : damaged("a number");
        for (const auto& [name, entry] : header_.items())
            if (name != "__metadata__") add(state, name, entry, shared_only);
        return state;
    }

private:
    template <class... Parts>
    [[noreturn]] void refuse(const Parts&... parts) const {
        fail_call(DDP_ERROR_INVALID_ARGUMENT, parts...);
    }
    [[noreturn]] std::int64_t damaged(const char* what) const {
        refuse("the state is damaged (", what, "); nothing was loaded");
    }

    void open(const StateKind& kind) {
        std::uint64_t length = 0;
        if (size_ < kLengthBytes) refuse("the state is cut short: ", size_, " bytes");
        std::memcpy(&length, file_, kLengthBytes);
        if (length > size_ - kLengthBytes)
            refuse("the state is cut short, or is none: its header should have ", length,
                   " bytes, and there are ", size_ - kLengthBytes);
        const auto* text_begin = reinterpret_cast<const char*>(file_) + kLengthBytes;
        // Depth is bounded by hand: a header has objects and lists three deep.
        header_ = Json::parse(
            text_begin, text_begin + length,
            [](int depth, Json::parse_event_t, Json&) { return depth <= 4; },
            /*allow_exceptions=*/false);
        if (!header_.is_object() || !header_.contains("__metadata__") ||
            !header_["__metadata__"].is_object())
            refuse("this is not the state of ", kind.owner, ": it has no header of ", kind.writer);
        data_ = file_ + kLengthBytes + length;
        data_size_ = size_ - kLengthBytes - length;
    }

    std::string text(const char* key) const {
        const Json& metadata = header_["__metadata__"];
        const auto found = metadata.find(key);
        if (found == metadata.end() || !found->is_string()) damaged(key);
        return found->get<std::string>();
    }

    void check_owner(const HookStateOwner& owner, bool shared_only) const {
        const Json& metadata = header_["__metadata__"];
        if (!metadata.contains("format") || metadata["format"] != owner.kind.format)
            refuse("this is not the state of ", owner.kind.owner, ": its format is not '",
                   owner.kind.format, "'");
        if (text("version") != kVersion)
            refuse("the state has version ", text("version"), "; this library reads version ",
                   kVersion);
        if (text("bytes") != std::to_string(data_size_))
            refuse("the state is cut short: ", data_size_, " of ", text("bytes"),
                   " bytes of arrays");
        if (text("checksum") != checksum(data_, data_size_)) damaged("its checksum differs");
        if (text("hook") != owner.hook)
            refuse("the state is of the hook '", text("hook"), "'; '", owner.hook,
                   "' is installed");
        if (shared_only) return;
        if (text("world") != std::to_string(owner.world))
            refuse("the state is of a world of ", text("world"), " ranks; this one has ",
                   owner.world,
                   ". With DDP_HOOK_STATE_SHARED_ONLY what all ranks share can be loaded");
        if (text("rank") != std::to_string(owner.rank))
            refuse("the state is of rank ", text("rank"), "; this is rank ", owner.rank);
    }

    void check_params() const {
        const Json params = Json::parse(text("parameters"), nullptr, false);
        if (!params.is_object()) damaged("parameters");
        for (const auto& [name, description] : params.items()) {
            const std::int32_t id = table_.find(name);
            if (id < 0)
                refuse("the state is of a model with a parameter '", name,
                       "', which this one does not have");
            const std::string here = describe(table_[id]);
            if (description != here)
                refuse("the state is of a model whose parameter '", name, "' is ",
                       description.is_string() ? description.get<std::string>() : "?",
                       "; here it is ", here);
        }
    }

    // From 1e30 the JSON library would make an integer, too, but which one is undefined.
    template <class Number>
    std::vector<Number> whole_numbers(const Json& entry, const char* key) const {
        std::vector<Number> numbers;
        if (!entry.at(key).is_array()) damaged(key);
        for (const Json& number : entry.at(key)) {
            if (!number.is_number_integer()) damaged(key);
            numbers.push_back(number.get<Number>());
        }
        return numbers;
    }

    void add(HookState& state, const std::string& name, const Json& entry, bool shared_only) const {
        HookState::Array array;
        const auto colon = name.find(':');
        array.key = name.substr(0, colon);
        if (colon != std::string::npos) array.param = table_.find(name.substr(colon + 1));
        if (colon != std::string::npos && array.param < 0)
            damaged("an array of an unknown parameter");
        array.shared = text("shared").find("\n" + name + "\n") != std::string::npos;
        if (shared_only && !array.shared) return;
        try {
            const auto dtype =
                std::find_if(dtype_names().begin(), dtype_names().end(), [&](const auto& known) {
                    return known.second == entry.at("dtype").get_ref<const std::string&>();
                });
            if (dtype == dtype_names().end()) damaged("a dtype");
            array.dtype = dtype->first;
            array.shape = whole_numbers<std::int64_t>(entry, "shape");
            const auto range = whole_numbers<std::size_t>(entry, "data_offsets");
            if (range.size() != 2 || range[0] > range[1] || range[1] > data_size_)
                damaged("data_offsets");
            array.data = data_ + range[0];
            array.bytes = range[1] - range[0];
        } catch (const Json::exception&) {
            damaged("the header");
        }
        check_size(array);
        state.arrays.push_back(std::move(array));
    }

    void check_size(const HookState::Array& array) const {
        std::size_t left = array.bytes / dtype_size(array.dtype);
        if (array.bytes % dtype_size(array.dtype) != 0) damaged("the size of an array");
        for (std::int64_t extent : array.shape) {
            if (extent <= 0 || left % static_cast<std::size_t>(extent) != 0) damaged("a shape");
            left /= static_cast<std::size_t>(extent);
        }
        if (left != 1) damaged("a shape");
        const bool whole = array.param >= 0 &&
                           (array.key == HookState::kError || array.key == HookState::kVelocity);
        if (whole && array.bytes / dtype_size(array.dtype) !=
                         static_cast<std::size_t>(table_[array.param].count))
            damaged("the size of an array");
    }

    const std::byte* const file_;
    const std::size_t size_;
    const ParamTable& table_;
    Json header_;
    const std::byte* data_ = nullptr;
    std::size_t data_size_ = 0;
};

}  // namespace

std::vector<std::byte> write_hook_state(const HookState& state, const HookStateOwner& owner,
                                        const ParamTable& table, std::int64_t timeout_ms) {
    Json header = Json::object(), params = Json::object();
    std::string shared = "\n";
    std::size_t end = 0;
    for (const auto& array : state.arrays) {
        const std::string name = entry_name(array, table);
        header[name] = {{"dtype", dtype_names().at(array.dtype)},
                        {"shape", array.shape},
                        {"data_offsets", {end, end + array.bytes}}};
        if (array.param >= 0) params[table[array.param].name] = describe(table[array.param]);
        if (array.shared) shared += name + "\n";
        end += array.bytes;
    }
    std::vector<std::byte> data(end);
    std::byte* next = data.data();
    HostCopies copies(timeout_ms);
    for (const auto& array : state.arrays) {
        if (array.home)
            copies.out(*array.home, next, array.data, array.bytes);
        else
            std::memcpy(next, array.data, array.bytes);
        next += array.bytes;
    }
    header["__metadata__"] = {{"format", owner.kind.format},
                              {"version", kVersion},
                              {"hook", owner.hook},
                              {"world", std::to_string(owner.world)},
                              {"rank", std::to_string(owner.rank)},
                              {"numbers", Json(state.numbers).dump()},
                              {"parameters", params.dump()},
                              {"shared", shared},
                              {"bytes", std::to_string(end)},
                              {"checksum", checksum(data.data(), data.size())}};
    std::string text = header.dump();
    text.resize(padded(text.size()), ' ');
    const std::uint64_t length = text.size();
    std::vector<std::byte> file(kLengthBytes + text.size() + data.size());
    std::memcpy(file.data(), &length, kLengthBytes);
    std::memcpy(file.data() + kLengthBytes, text.data(), text.size());
    std::copy(data.begin(), data.end(),
              file.begin() + static_cast<std::ptrdiff_t>(kLengthBytes + text.size()));
    return file;
}

HookState read_hook_state(const std::byte* file, std::size_t size, const HookStateOwner& owner,
                          const ParamTable& table, bool shared_only) {
    return Reader(file, size, table).read(owner, shared_only);
}

}  // namespace libddp
