/* error.hpp: what ddp.hpp is made of: errors as exceptions, owned handles. */
#ifndef DDP_ERROR_HPP
#define DDP_ERROR_HPP

#include <complex>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "ddp.h"

namespace ddp {

/* An error that a C function reported. */
class Error : public std::runtime_error {
public:
    explicit Error(ddp_status status, const std::string& message = {})
        : std::runtime_error(message.empty() ? ddp_status_name(status) : message),
          status_(status) {}
    Error(ddp_status status, const ddp_error& e)
        : std::runtime_error(ddp_error_message(&e)),
          status_(status),
          rank_(ddp_error_rank(&e)),
          param_(ddp_error_param(&e)),
          bucket_(ddp_error_bucket(&e)),
          step_(ddp_error_step(&e)) {}

    ddp_status status() const noexcept { return status_; }
    std::int32_t rank() const noexcept { return rank_; }
    std::int32_t param() const noexcept { return param_; }
    std::int32_t bucket() const noexcept { return bucket_; }
    std::int64_t step() const noexcept { return step_; }

private:
    ddp_status status_;
    std::int32_t rank_ = -1, param_ = -1, bucket_ = -1;
    std::int64_t step_ = -1;
};

/* Throws if a C function failed; frees the error. check(ddp_foo(..., &error), error). It takes a
 * reference because a compiler may look at the second argument first. */
inline void check(ddp_status status, ddp_error* const& error) {
    if (status == DDP_OK) return;
    std::unique_ptr<ddp_error, decltype(&ddp_error_free)> owned(error, &ddp_error_free);
    if (!owned) throw Error(status);
    throw Error(status, *owned);
}

/* The element type of a C++ type: float, double, std::int32_t, std::int64_t, std::uint8_t,
 * std::complex of float and double, and where the compiler has them _Float16 (std::float16_t) and
 * __bf16 (std::bfloat16_t). For a type of your own with the same bits:
 *
 *     template <>
 *     struct ddp::dtype_of<my::half> : ddp::dtype_constant<DDP_F16> {};
 */
template <ddp_dtype Dtype>
struct dtype_constant {
    static constexpr ddp_dtype value = Dtype;
};
template <class T>
struct dtype_of;
template <>
struct dtype_of<float> : dtype_constant<DDP_F32> {};
template <>
struct dtype_of<double> : dtype_constant<DDP_F64> {};
template <>
struct dtype_of<std::int32_t> : dtype_constant<DDP_I32> {};
template <>
struct dtype_of<std::int64_t> : dtype_constant<DDP_I64> {};
template <>
struct dtype_of<std::uint8_t> : dtype_constant<DDP_U8> {};
template <>
struct dtype_of<std::complex<float>> : dtype_constant<DDP_C64> {};
template <>
struct dtype_of<std::complex<double>> : dtype_constant<DDP_C128> {};
/* GCC 12 for ARM has the limits of the type, but in C++ not the type. */
#if defined(__FLT16_MAX__) && \
    !(defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13)
template <>
struct dtype_of<_Float16> : dtype_constant<DDP_F16> {};
#endif
#ifdef __BFLT16_MAX__
template <>
struct dtype_of<__bf16> : dtype_constant<DDP_BF16> {};
#endif

namespace detail {

/* Calls f(args..., &error) and throws on failure. */
template <class F, class... Args>
void call(F f, Args... args) {
    ddp_error* error = nullptr;
    ddp_status status = f(args..., &error);
    check(status, error);
}

/* Runs a function of C++ inside a C callback: an exception becomes a status and an error object. */
template <class F>
ddp_status guarded(ddp_error** error, F&& body) noexcept {
    try {
        body();
        return DDP_OK;
    } catch (const Error& e) {
        *error = ddp_error_create(e.status(), e.what());
        return e.status();
    } catch (const std::exception& e) {
        *error = ddp_error_create(DDP_ERROR_CALLBACK, e.what());
    } catch (...) {
        *error = ddp_error_create(DDP_ERROR_CALLBACK, "an exception that is not a std::exception");
    }
    return DDP_ERROR_CALLBACK;
}

template <class T, void (*Free)(T*)>
class Handle {
public:
    Handle() = default;
    explicit Handle(T* handle) : handle_(handle) {}
    T* get() const noexcept { return handle_.get(); }
    T* release() noexcept { return handle_.release(); }
    explicit operator bool() const noexcept { return handle_ != nullptr; }

protected:
    struct Deleter {
        void operator()(T* handle) const { Free(handle); }
    };
    std::unique_ptr<T, Deleter> handle_;
};

}  // namespace detail

}  // namespace ddp

#endif  // DDP_ERROR_HPP
