#include "support/fake_device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "support/fake_device/stream.h"

namespace fake {
namespace {

constexpr std::size_t kDeviceBytes = std::size_t{128} << 20;
constexpr std::size_t kAlignment = 256;
// f16, bf16, f32 and f64 of these bytes are NaNs.
constexpr int kGarbage = 0xff;

}  // namespace

Memory& Memory::instance() {
    static Memory& memory = *new Memory;
    return memory;
}

Memory::Memory() {
    const int file = memfd_create("fake-device", 0);
    if (file < 0 || ftruncate(file, 2 * kDeviceBytes) != 0) die("no memory");
    void* visible = mmap(nullptr, 2 * kDeviceBytes, PROT_NONE, MAP_SHARED, file, 0);
    void* hidden = mmap(nullptr, 2 * kDeviceBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (visible == MAP_FAILED || hidden == MAP_FAILED) die("no memory");
    visible_ = static_cast<char*>(visible);
    hidden_ = static_cast<char*>(hidden);
    for (std::size_t device = 0; device < 2; ++device)
        free_[device][device * kDeviceBytes] = kDeviceBytes;
}

void* Memory::allocate(int device, std::size_t bytes) {
    const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard lock(mutex_);
    long& left = left_[device];
    if (left == 0) return nullptr;
    if (left > 0) --left;
    auto& holes = free_[device];
    const auto hole = std::find_if(holes.begin(), holes.end(),
                                   [size](const auto& h) { return h.second >= size; });
    if (hole == holes.end()) return nullptr;
    const auto [begin, room] = *hole;
    holes.erase(hole);
    if (room > size) holes[begin + size] = room - size;
    used_[begin] = size;
    std::memset(hidden_ + begin, kGarbage, size);
    return visible_ + begin;
}

void Memory::set_allocations_left(int device, long count) {
    const std::lock_guard lock(mutex_);
    left_[device] = count;
}

void Memory::free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto begin = static_cast<std::size_t>(static_cast<char*>(memory) - visible_);
    const auto block = used_.find(begin);
    if (block == used_.end()) die("memory is freed that is not allocated");
    const std::size_t size = block->second;
    used_.erase(block);
    std::memset(hidden_ + begin, kGarbage, size);
    auto& holes = free_[begin / kDeviceBytes];
    auto hole = holes.emplace(begin, size).first;
    if (auto next = std::next(hole);
        next != holes.end() && hole->first + hole->second == next->first) {
        hole->second += next->second;
        holes.erase(next);
    }
    if (hole == holes.begin()) return;
    auto before = std::prev(hole);
    if (before->first + before->second != hole->first) return;
    before->second += hole->second;
    holes.erase(hole);
}

char* Memory::alias(int device, const void* memory, std::size_t bytes) {
    if (device_of(memory) != device) die("an operation was given memory that is not of its device");
    const auto begin = static_cast<std::size_t>(static_cast<const char*>(memory) - visible_);
    const std::lock_guard lock(mutex_);
    const auto next = used_.upper_bound(begin);
    if (next == used_.begin() || begin + bytes > std::prev(next)->first + std::prev(next)->second)
        die("an operation touches memory that is not allocated");
    return hidden_ + begin;
}

char* Memory::alias(const void* memory) const {
    if (device_of(memory) < 0) die("not device memory");
    return hidden_ + (static_cast<const char*>(memory) - visible_);
}

int Memory::device_of(const void* memory) const {
    const auto* m = static_cast<const char*>(memory);
    if (m < visible_ || m >= visible_ + 2 * kDeviceBytes) return -1;
    return static_cast<std::size_t>(m - visible_) < kDeviceBytes ? 0 : 1;
}

long Memory::blocks() {
    const std::lock_guard lock(mutex_);
    return static_cast<long>(used_.size());
}

std::size_t Memory::live_bytes() {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto& [begin, size] : used_) bytes += size;
    return bytes;
}

void* Memory::allocate_pinned(std::size_t bytes) {
    const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    auto* memory = static_cast<char*>(std::aligned_alloc(kAlignment, size));
    if (!memory) return nullptr;
    std::memset(memory, kGarbage, size);
    const std::lock_guard lock(mutex_);
    pinned_[memory] = size;
    ++pinned_allocations_;
    return memory;
}

void Memory::free_pinned(void* memory) {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(static_cast<char*>(memory)) == 0)
        die("pinned memory is freed that is not allocated");
    std::free(memory);
}

void Memory::require_pinned(const void* memory, std::size_t bytes) {
    const auto* begin = static_cast<const char*>(memory);
    const std::lock_guard lock(mutex_);
    const auto next = pinned_.upper_bound(begin);
    if (next == pinned_.begin() || begin + bytes > std::prev(next)->first + std::prev(next)->second)
        die("a copy touches memory of the host that is not pinned");
}

long Memory::pinned() {
    const std::lock_guard lock(mutex_);
    return static_cast<long>(pinned_.size());
}

long Memory::pinned_allocations() {
    const std::lock_guard lock(mutex_);
    return pinned_allocations_;
}

}  // namespace fake
