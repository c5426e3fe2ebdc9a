// Bytes that the caller owns and frees with ddp_bytes_free.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace libddp {

inline void give_bytes(const std::vector<std::byte>& bytes, void** data, std::size_t* size) {
    void* copy = std::malloc(bytes.size());
    if (!copy) throw std::bad_alloc();
    std::memcpy(copy, bytes.data(), bytes.size());
    *data = copy;
    *size = bytes.size();
}

}  // namespace libddp
