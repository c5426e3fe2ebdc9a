#include "core/param_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

#include "device/device.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kMaxDims = 16;

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += str(i ? "," : "", shape[i]);
    return text + "]";
}

// "'w' has f32[2,3], 6 elements, 24 bytes at 0x1000 to 0x1018".
std::string range_text(const Param& p, std::uintptr_t at) {
    return str("'", p.name, "' has ", dtype_name(p.gradient.dtype), shape_text(p.shape), ", ",
               p.count, " elements, ", p.gradient.bytes, " bytes at 0x", std::hex, at, " to 0x",
               at + p.gradient.bytes);
}

}  // namespace

std::int32_t ParamTable::add_param(Param param) {
    check(param, "parameter");
    if (param.sparse && param.shape.empty())
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", param.name,
             "': ndim is 0; DDP_PARAM_SPARSE needs rows");
    if (param.sparse && param.grad)
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", param.name,
             "': grad must be NULL with DDP_PARAM_SPARSE; rows come with ddp_grad_ready_sparse");
    if (param.sparse && param.uses != 1)
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", param.name, "': uses is ", param.uses,
             "; a sparse parameter is announced once");
    if (param.factored) check_factored(param);
    if (params_.size() >= std::numeric_limits<std::int32_t>::max())
        fail(DDP_ERROR_LIMIT, "a context holds at most ", std::numeric_limits<std::int32_t>::max(),
             " parameters");
    if (param.in_place.asked) check_in_place(param);
    const void* const gradient = param.grad ? param.grad : param.in_place.memory;
    if (gradient && param.gradient.bytes > 0 && !param.ignored)
        check_overlap(param, gradient, "grad");
    by_name_[param.name] = size();
    params_.push_back(std::move(param));
    return size() - 1;
}

std::vector<std::int32_t> ParamTable::add_params(std::vector<Param> params) {
    if (params.size() == 1) return {add_param(std::move(params.front()))};
    ParamTable table = *this;
    std::vector<std::int32_t> ids;
    for (Param& param : params) ids.push_back(table.add_param(std::move(param)));
    *this = std::move(table);
    return ids;
}

void ParamTable::add_buffer(Param buffer) {
    check(buffer, "buffer");
    if (buffer.grad)
        fail(DDP_ERROR_INVALID_ARGUMENT, "buffer '", buffer.name,
             "': grad must be NULL, buffers have no gradient");
    if (!buffer.data && buffer.bytes > 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "buffer '", buffer.name, "': data is NULL");
    by_name_[buffer.name] = -2 - static_cast<std::int32_t>(buffers_.size());
    buffers_.push_back(std::move(buffer));
}

void ParamTable::require(std::int32_t id) const {
    if (id < 0 || id >= size())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "parameter ", id, " does not exist; there are ",
                  size());
}

std::int32_t ParamTable::find(std::string_view name) const {
    auto found = by_name_.find(name);
    return found == by_name_.end() || found->second < 0 ? -1 : found->second;
}

void ParamTable::check(Param& p, const char* kind) const {
    if (p.name.empty()) fail(DDP_ERROR_INVALID_ARGUMENT, kind, " ", size(), ": name is empty");
    if (p.name.size() > kMaxName)
        fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name.substr(0, 32), "...': name has ",
             p.name.size(), " bytes; at most ", kMaxName, " are allowed");
    if (by_name_.count(p.name))
        fail(DDP_ERROR_ALREADY_EXISTS, kind, " '", p.name,
             "' is registered already; names must be unique");
    if (p.shape.size() > kMaxDims)
        fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name, "': ndim is ", p.shape.size(),
             "; at most ", kMaxDims, " are allowed");
    if (p.gradient.dtype == 0) p.gradient.dtype = p.dtype;
    check_dtypes(p, kind);
    check_device(p, kind);
    p.count = 1;
    for (std::size_t i = 0; i < p.shape.size(); ++i) {
        if (p.shape[i] < 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name, "': shape[", i, "] is ",
                 p.shape[i], "; it must not be negative");
        if (p.shape[i] > 0 && p.count > std::numeric_limits<std::int64_t>::max() / 64 / p.shape[i])
            fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name, "': shape ", shape_text(p.shape),
                 " is too large");
        p.count *= p.shape[i];
    }
    p.bytes = static_cast<std::size_t>(p.count) * dtype_size(p.dtype);
    p.gradient.bytes = static_cast<std::size_t>(p.count) * dtype_size(p.gradient.dtype);
    for (auto [memory, field, dtype] :
         {std::tuple{p.data, "data", p.dtype}, std::tuple{p.grad, "grad", p.gradient.dtype},
          std::tuple{p.in_place.memory, "grad", p.gradient.dtype}})
        if (reinterpret_cast<std::uintptr_t>(memory) % std::min<std::size_t>(8, dtype_size(dtype)))
            fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name, "': ", field,
                 " is not aligned to its element (", dtype_name(dtype), ")");
}

void ParamTable::check_dtypes(const Param& p, const char* kind) const {
    for (auto [dtype, field] :
         {std::pair{p.dtype, "dtype"}, std::pair{p.gradient.dtype, "grad_dtype"}})
        if (dtype_size(dtype) == 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name, "': ", field, " ", dtype,
                 " is unknown (see types.h)");
    const bool alike = is_floating(p.dtype) && is_floating(p.gradient.dtype) &&
                       is_complex(p.dtype) == is_complex(p.gradient.dtype);
    if (p.gradient.dtype != p.dtype && !alike)
        fail(DDP_ERROR_UNSUPPORTED, kind, " '", p.name, "': grad_dtype is ",
             dtype_name(p.gradient.dtype), " and dtype is ", dtype_name(p.dtype),
             "; if they differ, both must be real floating-point types, or both complex");
}

// The wrong processor would read memory that is not where the program says.
void ParamTable::check_device(const Param& p, const char* kind) const {
    require_device(p.device, str(kind, " '", p.name, "'"));
    if (!is_cpu(p.device) && p.alone())
        fail(DDP_ERROR_UNSUPPORTED, kind, " '", p.name,
             "': flags: DDP_PARAM_SPARSE and DDP_PARAM_FACTORED are for memory of the CPU, and "
             "this is on ",
             device_name(p.device));
    for (auto [memory, field] : {std::pair{p.data, "data"}, std::pair{p.grad, "grad"},
                                 std::pair{p.in_place.memory, "grad"}}) {
        if (!memory) continue;
        const ddp_device where = device_of(memory);
        if (!same_device(where, p.device))
            fail(DDP_ERROR_INVALID_ARGUMENT, kind, " '", p.name, "': ", field, " is memory of ",
                 device_name(where), ", but device says ", device_name(p.device));
    }
}

void ParamTable::check_factored(const Param& p) const {
    if (p.sparse)
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", p.name,
             "': flags: DDP_PARAM_FACTORED and DDP_PARAM_SPARSE exclude each other");
    if (p.shape.empty())
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", p.name,
             "': ndim is 0; DDP_PARAM_FACTORED needs rows and columns");
    if (p.gradient.dtype != DDP_F32 && p.gradient.dtype != DDP_F64)
        fail(DDP_ERROR_UNSUPPORTED, "parameter '", p.name,
             "': ", p.gradient.dtype == p.dtype ? "dtype" : "grad_dtype", " is ",
             dtype_name(p.gradient.dtype), "; DDP_PARAM_FACTORED needs f32 or f64");
}

void ParamTable::check_in_place(Param& p) const {
    if (p.alone())
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", p.name,
             "': flags: DDP_PARAM_IN_PLACE and DDP_PARAM_", p.sparse ? "SPARSE" : "FACTORED",
             " exclude each other");
    if (p.gradient.bytes > 0 && !p.in_place.memory && !p.grad)
        fail(DDP_ERROR_INVALID_ARGUMENT, "parameter '", p.name,
             "': grad is NULL; with DDP_PARAM_IN_PLACE it says where the gradient lies");
    if (p.gradient.bytes == 0) p.in_place.memory = nullptr;
}

void ParamTable::check_overlap(const Param& p, const void* memory, const char* what) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + p.gradient.bytes;
    auto next = gradient_memory_.lower_bound(begin);
    auto hit = gradient_memory_.end();
    if (next != hit && next->first < end) hit = next;
    if (next != gradient_memory_.begin() && std::prev(next)->second.end > begin)
        hit = std::prev(next);
    if (hit != gradient_memory_.end()) {
        const auto& [at, range] = *hit;
        const Param& other = params_[static_cast<std::size_t>(range.owner)];
        fail(DDP_ERROR_ALREADY_EXISTS, "parameter '", p.name, "': its ", what,
             " overlaps that of '", other.name, "': ", range_text(p, begin), " and ",
             range_text(other, at), "; they share ", std::min(end, range.end) - std::max(begin, at),
             " bytes. Register a tied parameter once, and check dtype and shape: each must be that "
             "of the memory");
    }
    gradient_memory_[begin] = {end, size()};
}

std::vector<std::int32_t> ParamTable::neighbours() const {
    std::vector<std::int32_t> result(params_.size(), -1);
    for (auto next = gradient_memory_.begin(); next != gradient_memory_.end(); ++next) {
        if (next == gradient_memory_.begin()) continue;
        const Range& before = std::prev(next)->second;
        const Param& p = (*this)[next->second.owner];
        const Param& other = (*this)[before.owner];
        if (p.in_place.memory && other.in_place.memory && before.end == next->first &&
            p.gradient.dtype == other.gradient.dtype && same_device(p.device, other.device))
            result[static_cast<std::size_t>(next->second.owner)] = before.owner;
    }
    return result;
}

void ParamTable::set_follows(const std::vector<std::int32_t>& follows) {
    for (std::size_t i = 0; i < params_.size(); ++i) params_[i].in_place.follows = follows[i];
}

bool ParamTable::any_in_place() const {
    return std::any_of(params_.begin(), params_.end(),
                       [](const Param& p) { return p.in_place.asked; });
}

void ParamTable::set_owner(std::int32_t id, Owner owner, double cost) {
    require(id);
    params_[static_cast<std::size_t>(id)].gradient.owner = owner;
    params_[static_cast<std::size_t>(id)].gradient.cost = cost;
}

std::vector<std::string> ParamTable::lines() const {
    std::vector<std::string> result;
    auto add = [&result](const char* kind, const std::vector<Param>& entries) {
        for (std::size_t i = 0; i < entries.size(); ++i) {
            const Param& p = entries[i];
            result.push_back(str(
                kind, " ", i, " '", p.name, "' ", dtype_name(p.dtype), shape_text(p.shape),
                p.data ? "" : " without data",
                p.gradient.dtype == p.dtype ? ""
                                            : str(" with gradients ", dtype_name(p.gradient.dtype)),
                p.ignored ? " ignored" : "", p.delayed ? " delayed" : "", p.sparse ? " sparse" : "",
                p.factored ? " factored" : "", p.in_place.asked ? " in place" : "",
                is_cpu(p.device) ? "" : " on a device",
                p.uses > 1 ? str(" announced ", p.uses, " times") : "",
                p.gradient.owner == Owner::kOne   ? str(" owned whole, at cost ", p.gradient.cost)
                : p.gradient.owner == Owner::kAll ? " replicated"
                                                  : ""));
        }
    };
    add("parameter", params_);
    add("buffer", buffers_);
    return result;
}

}  // namespace libddp
