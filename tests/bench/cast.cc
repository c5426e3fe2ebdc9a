// Compares casting between f32 and the 16-bit types with copying, in turns: bytes read and written
// a second, and their share of memcpy's. Buckets of 25 MiB, as a hook casts them, and of 1 MiB.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <vector>

#include "device/memory.h"
#include "kernels/arithmetic.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Job {
    const char* name;
    std::size_t bytes;  // read and written, an element
    std::function<void(std::size_t count)> run;
    std::vector<double> seconds = {};
};

double median(std::vector<double>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

void compare(std::size_t count, int turns) {
    using libddp::cpu::convert;
    const auto wide = libddp::allocate_zeroed(count * 4),
               other = libddp::allocate_zeroed(count * 4),
               narrow = libddp::allocate_zeroed(count * 2);
    for (std::size_t i = 0; i < count; ++i)
        reinterpret_cast<float*>(wide.get())[i] = static_cast<float>(i % 1000) * 1e-3f - 0.3f;
    Job jobs[] = {
        {"memcpy f32", 8, [&](std::size_t n) { std::memcpy(other.get(), wide.get(), n * 4); }},
        {"f32 to f16", 6,
         [&](std::size_t n) { convert(narrow.get(), DDP_F16, wide.get(), DDP_F32, n); }},
        {"f16 to f32", 6,
         [&](std::size_t n) { convert(wide.get(), DDP_F32, narrow.get(), DDP_F16, n); }},
        {"f32 to bf16", 6,
         [&](std::size_t n) { convert(narrow.get(), DDP_BF16, wide.get(), DDP_F32, n); }},
        {"bf16 to f32", 6,
         [&](std::size_t n) { convert(wide.get(), DDP_F32, narrow.get(), DDP_BF16, n); }},
    };
    for (int turn = 0; turn < turns; ++turn)
        for (Job& job : jobs) {
            const auto begin = Clock::now();
            job.run(count);
            job.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
        }
    double copy = 0;
    for (Job& job : jobs) {
        const double rate = 1e-9 * static_cast<double>(job.bytes * count) / median(job.seconds);
        if (copy == 0) copy = rate;
        std::printf("%9zu elements  %-12s %6.2f GB/s  %5.1f %% of copying\n", count, job.name, rate,
                    100 * rate / copy);
    }
}

}  // namespace

int main() {
    std::printf("kernels: %s\n", libddp::cpu::instruction_set());
    compare(std::size_t{25} << 18, 60);
    compare(std::size_t{1} << 18, 600);
    return 0;
}
