// Bytes and text that the caller owns and frees with ddp_free.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace libddp {

// A copy with a NUL behind it, so that text prints. content: of bytes or characters.
template <class Content>
void* give_bytes(const Content& content) {
    auto* copy = static_cast<char*>(std::malloc(content.size() + 1));
    if (!copy) throw std::bad_alloc();
    std::memcpy(copy, content.data(), content.size());
    copy[content.size()] = '\0';
    return copy;
}

template <class Content>
void give_bytes(const Content& content, void** data, std::size_t* size) {
    *data = give_bytes(content);
    *size = content.size();
}

}  // namespace libddp
