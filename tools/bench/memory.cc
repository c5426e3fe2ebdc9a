#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "handles.h"

namespace bench {
namespace {

constexpr std::size_t kLine = 64;

Memory own_memory(std::size_t bytes) {
    const std::size_t whole = (bytes + kLine - 1) / kLine * kLine;
    Memory memory(std::aligned_alloc(kLine, whole), std::free);
    if (!memory) throw std::bad_alloc();
    std::memset(memory.get(), 0, whole);
    return memory;
}

Memory group_memory(ddp_group* group, std::size_t bytes) {
    void* memory = nullptr;
    Result result;
    result.check(ddp_mem_alloc(group, bytes, &memory, result));
    return Memory(memory, [](void* allocated) { ddp_mem_free(allocated, nullptr); });
}

}  // namespace

Memory collective_memory(ddp_group* group, const std::string& mode, std::size_t bytes) {
    return mode == "group" ? group_memory(group, bytes) : own_memory(bytes);
}

}  // namespace bench
