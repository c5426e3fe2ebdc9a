#include "limit.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "measure.h"
#include "util/processors.h"

namespace bench {
namespace {

// parts begin and end at cache lines, as no two ranks should write to one
constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

template <typename Vector>
[[gnu::always_inline]] inline Vector* at(float* place) {
    return reinterpret_cast<Vector*>(place);
}

template <typename Vector>
[[gnu::always_inline]] inline void sum_parts(float* const* parts, std::size_t world,
                                             std::size_t count) {
    for (std::size_t i = 0; i < count; i += sizeof(Vector) / sizeof(float)) {
        Vector sum = *at<Vector>(parts[0] + i);
        for (std::size_t part = 1; part < world; ++part) sum += *at<Vector>(parts[part] + i);
        for (std::size_t part = 0; part < world; ++part) *at<Vector>(parts[part] + i) = sum;
    }
}

// Vectors that may be read and written where floats are; parts begin and end at cache lines, so
// they are aligned.
using Floats4 = float __attribute__((vector_size(16), may_alias));

void sum_default(float* const* parts, std::size_t world, std::size_t count) {
    sum_parts<Floats4>(parts, world, count);
}

using Sum = void (*)(float* const*, std::size_t, std::size_t);

#if defined(__x86_64__)
using Floats8 = float __attribute__((vector_size(32), may_alias));
using Floats16 = float __attribute__((vector_size(64), may_alias));

[[gnu::target("avx2")]] void sum_avx2(float* const* parts, std::size_t world, std::size_t count) {
    sum_parts<Floats8>(parts, world, count);
}

[[gnu::target("avx512f")]] void sum_avx512(float* const* parts, std::size_t world,
                                           std::size_t count) {
    sum_parts<Floats16>(parts, world, count);
}

Sum widest() {
    if (__builtin_cpu_supports("avx512f")) return sum_avx512;
    return __builtin_cpu_supports("avx2") ? sum_avx2 : sum_default;
}
#else
Sum widest() {
    return sum_default;
}
#endif

double thread_ms() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

std::size_t round_up(std::size_t bytes, std::size_t to) {
    return (bytes + to - 1) / to * to;
}

}  // namespace

Limit::Limit(int world, int rank, std::size_t bytes)
    : ranks_to_core_(std::max(1.0, static_cast<double>(world) / libddp::usable_processors())) {
    const auto ranks = static_cast<std::size_t>(world);
    const std::size_t part = round_up((bytes + ranks - 1) / ranks, kLine);
    const std::size_t buffer = round_up(part * ranks, kPage);
    size_ = buffer * ranks;
    // Only the parts of this rank are ever touched, and only what is touched costs memory.
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED)
        throw std::runtime_error(std::string("mmap for the limit: ") + std::strerror(errno));
    count_ = part / sizeof(float);
    for (std::size_t i = 0; i < ranks; ++i) {
        char* start =
            static_cast<char*>(memory_) + i * buffer + static_cast<std::size_t>(rank) * part;
        std::memset(start, 0, part);
        parts_.push_back(static_cast<float*>(static_cast<void*>(start)));
    }
}

Limit::~Limit() {
    munmap(memory_, size_);
}

double Limit::pass() const {
    static const Sum sum = widest();
    const bool shared = ranks_to_core_ > 1;
    const double start = shared ? thread_ms() : now_ms();
    sum(parts_.data(), parts_.size(), count_);
    return ranks_to_core_ * ((shared ? thread_ms() : now_ms()) - start);
}

}  // namespace bench
