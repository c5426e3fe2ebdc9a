// Memory between the caller's buffers and MPI. What MPI was given can never be taken back, so it gets this memory and
// not the caller's: an operation that is given up leaves it to MPI.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "device/memory.h"

namespace libddp::mpi {

class Staging {
public:
    static constexpr std::size_t kSlots = 4;

    // Aligned to 64 bytes. What was in the slot is lost if it has to grow.
    std::byte* require(std::size_t slot, std::size_t bytes) {
        auto& [memory, size] = slots_[slot];
        if (bytes > size) {
            memory = allocate_zeroed(bytes);
            size = bytes;
        }
        return memory.get();
    }
    // Keeps the slot's memory alive.
    std::shared_ptr<const void> keep(std::size_t slot) const { return slots_[slot].memory; }

private:
    struct Slot {
        std::shared_ptr<std::byte> memory;
        std::size_t size = 0;
    };
    std::array<Slot, kSlots> slots_;
};

}  // namespace libddp::mpi
