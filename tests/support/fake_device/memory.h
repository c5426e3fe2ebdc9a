// The memory of the fake devices.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace fake {

class Memory {
public:
    static Memory& instance();

    // Null if there is no room.
    void* allocate(int device, std::size_t bytes);
    void free(void* memory);
    void set_allocations_left(int device, long count);
    // The second mapping of live memory of this device; anything else ends the process.
    char* alias(int device, const void* memory, std::size_t bytes);
    char* alias(const void* memory) const;
    // -1: not of a device.
    int device_of(const void* memory) const;
    long blocks();
    std::size_t live_bytes();

    void* allocate_pinned(std::size_t bytes);
    void free_pinned(void* memory);
    // Ends the process unless it is.
    void require_pinned(const void* memory, std::size_t bytes);
    long pinned();
    long pinned_allocations();

private:
    Memory();

    std::mutex mutex_;
    char* visible_ = nullptr;  // what libddp gets
    char* hidden_ = nullptr;   // where the devices work
    // begin and size, in bytes from the first device's memory
    std::map<std::size_t, std::size_t> free_[2], used_;
    std::map<const char*, std::size_t> pinned_;
    long pinned_allocations_ = 0;
    long left_[2] = {-1, -1};
};

}  // namespace fake
