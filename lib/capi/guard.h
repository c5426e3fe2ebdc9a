// The guard of every function of the C ABI: no exception gets out, every error gets its object and
// the name of the function, every struct its size checked, and every handle its process. No thread
// is cancelled inside a function.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "record/recorder.h"
#include "util/error.h"
#include "util/process.h"

namespace libddp {

inline void give_error(ddp_error** error, const ErrorInfo& info) noexcept {
    if (error) *error = make_error(info);
}

template <class Body>
ddp_status run_guarded(ddp_error** error, const char* call, Body&& body) noexcept {
    try {
        in_call(call, body);
        return DDP_OK;
    } catch (...) {
        const NoCancellation uncancelled;
        const ErrorInfo info = caught();
        record::note_failure(info);
        give_error(error, info);
        return info.code;
    }
}

// kRarely: a function of some ten nanoseconds, for which a NoCancellation would double the time. A
// function that may wait holds one.
enum class Waits { kPerhaps, kRarely };

// call: the name of the public function.
template <Waits waits = Waits::kPerhaps, class Body>
ddp_status guard(ddp_error** error, const char* call, Body&& body) {
    if constexpr (waits == Waits::kRarely) return run_guarded(error, call, body);
    const NoCancellation uncancelled;
    return run_guarded(error, call, body);
}

// Throws INVALID_ARGUMENT "`name` is NULL", and INVALID_STATE if it is a handle of the process that
// forked this one.
template <class T>
T* require(T* pointer, const char* name) {
    if (!pointer) fail_call(DDP_ERROR_INVALID_ARGUMENT, name, " is NULL");
    if constexpr (requires { pointer->origin.inherited(); })
        if (pointer->origin.inherited())
            fail_call(
                DDP_ERROR_INVALID_STATE, name,
                " belongs to the process that forked this one, and its threads and connections "
                "stayed there; create one in this process, or start it with exec or spawn");
    return pointer;
}

// Ends a handle; null is allowed. A forked child does nothing: the threads and connections are its
// parent's.
template <class Handle>
void free_handle(Handle* handle) {
    if (!handle || handle->origin.inherited()) return;
    const NoCancellation uncancelled;
    delete handle;
}

// The size that a caller's versioned struct states. In every header it is a multiple of the
// alignment, so no field is cut. A size that nobody has set is seldom a multiple, and seldom so
// small.
template <class Struct>
std::size_t told_size(const Struct* source, const char* name, const char* remedy) {
    constexpr std::size_t kLargest = 4096;
    const std::size_t size = require(source, name)->struct_size;
    if (size < sizeof(std::size_t) || size > kLargest || size % alignof(Struct) != 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, name, "->struct_size is ", size, "; ", remedy);
    return size;
}

// Copies a caller's versioned struct: as many bytes as both sides know. `target` holds the
// defaults. Fields that a newer caller has more must be zero.
template <class Struct>
void read_struct(const Struct* source, Struct* target, const char* name) {
    const std::size_t size = told_size(source, name, "fill the struct with its _init function");
    const std::size_t common = std::min(size, sizeof(Struct));
    std::memcpy(target, source, common);
    target->struct_size = sizeof(Struct);
    const char* tail = reinterpret_cast<const char*>(source) + common;
    for (std::size_t i = 0; i < size - common; ++i)
        if (tail[i] != 0)
            fail_call(DDP_ERROR_UNSUPPORTED, name, " has fields that libddp ", ddp_version(),
                      " does not know; run with a newer library or leave them zero");
}

// Writes a caller's versioned struct of `size` bytes, none behind it. A field that only the caller
// knows becomes zero. The struct keeps the caller's size: that is how libddp reads it afterwards.
template <class Struct>
void fill_struct(Struct* target, std::size_t size, Struct values) {
    if (!target) return;
    values.struct_size = size;
    const std::size_t common = std::min(size, sizeof values);
    std::memcpy(target, &values, common);
    std::memset(reinterpret_cast<char*>(target) + common, 0, size - common);
}

inline void require_zero(unsigned long long value, const char* field) {
    if (value != 0) fail_call(DDP_ERROR_INVALID_ARGUMENT, field, " is ", value, "; it must be 0");
}

inline void require_flags(std::uint32_t flags, std::uint32_t known) {
    if (flags & ~known)
        fail_call(DDP_ERROR_UNSUPPORTED, "flags has unknown bits 0x", std::hex, flags & ~known);
}

// Calls take(pointer) with a user's pointer that calls `destroy` (may be NULL) when the last copy of
// it goes. Where take() throws, the pointer stays the user's, and nobody calls `destroy`.
template <class Take>
void take_over(void* user_data, void (*destroy)(void*), Take take) {
    const auto taken = std::make_shared<bool>(false);
    const std::shared_ptr<void> owned(user_data, [destroy, taken](void* data) {
        if (*taken && destroy) destroy(data);
    });
    take(owned);
    *taken = true;
}

inline std::string text_or(const char* text, const char* otherwise) {
    return text ? text : otherwise;
}

}  // namespace libddp
