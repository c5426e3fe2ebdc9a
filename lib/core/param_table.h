// The parameters and buffers of a context, in registration order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/types.h"

namespace libddp {

// The facts of DDP_PARAM_IN_PLACE about a parameter.
struct InPlace {
    bool asked = false;      // a check, or a gradient without elements, does without
    bool shared = false;     // ranks of other processes may reach the memory
    void* memory = nullptr;  // the program's, where the gradient lives: a part of its bucket
    // the parameter whose gradient ends where this one begins, on every rank
    std::int32_t follows = -1;
};

// Which ranks update a parameter, where gradients are sharded.
enum class Owner : std::uint8_t { kEachItsElements, kOne, kAll };

// A gradient as it is announced, reduced and given back.
struct ParamGradient {
    ddp_dtype dtype = 0;  // before it is in a table, 0: that of the value
    std::size_t bytes = 0;
    Owner owner = Owner::kEachItsElements;
    double cost = 0;  // of the update, beside others'; 0: its elements
};

struct Param {
    std::string name;
    std::vector<std::int64_t> shape;
    ddp_dtype dtype = DDP_F32;  // of the value
    ddp_device device{DDP_DEVICE_CPU, 0};
    void* data = nullptr;
    void* grad = nullptr;    // null: the gradient lives in its bucket
    std::int64_t count = 0;  // elements
    std::size_t bytes = 0;   // of the value
    ParamGradient gradient;
    std::int32_t uses = 1;  // announcements a step
    bool ignored = false;
    bool delayed = false;
    bool sparse = false;
    bool factored = false;
    InPlace in_place;

    // Its gradient travels in a way of its own, and so in a bucket of its own.
    bool alone() const { return sparse || factored; }
    // Elements of one row of a sparse gradient, or of one seen as a matrix.
    std::int64_t row_count() const { return shape.empty() || shape[0] == 0 ? 0 : count / shape[0]; }
};

class ParamTable {
public:
    // Checks and adds; the result is the index. Throws INVALID_ARGUMENT, ALREADY_EXISTS or
    // UNSUPPORTED.
    std::int32_t add_param(Param param);
    // All or none.
    std::vector<std::int32_t> add_params(std::vector<Param> params);
    void add_buffer(Param buffer);

    // For each parameter: the one whose gradient ends where this one's begins, in this process. -1:
    // none, or not in place.
    std::vector<std::int32_t> neighbours() const;
    // The neighbours that all ranks have in common.
    void set_follows(const std::vector<std::int32_t>& follows);
    bool any_in_place() const;

    const Param& operator[](std::int32_t id) const { return params_[static_cast<std::size_t>(id)]; }
    // Throws INVALID_ARGUMENT if there is no such parameter.
    void require(std::int32_t id) const;
    const std::vector<Param>& params() const { return params_; }
    const std::vector<Param>& buffers() const { return buffers_; }
    std::int32_t size() const { return static_cast<std::int32_t>(params_.size()); }
    // -1 if there is none.
    std::int32_t find(std::string_view name) const;

    void set_owner(std::int32_t id, Owner owner, double cost);

    // One line for each parameter and buffer: what has to be the same on every rank.
    std::vector<std::string> lines() const;

private:
    void check(Param& param, const char* kind) const;
    void check_dtypes(const Param& param, const char* kind) const;
    void check_device(const Param& param, const char* kind) const;
    void check_factored(const Param& param) const;
    void check_in_place(Param& param) const;
    void check_overlap(const Param& param, const void* memory, const char* what);

    std::vector<Param> params_;
    std::vector<Param> buffers_;
    std::map<std::string, std::int32_t, std::less<>> by_name_;  // buffers: -2 - index
    struct Range {
        std::uintptr_t end;
        std::int32_t owner;
    };
    // by start: two gradients in one place would corrupt each other
    std::map<std::uintptr_t, Range> gradient_memory_;
};

}  // namespace libddp
