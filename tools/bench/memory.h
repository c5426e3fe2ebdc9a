// The memory that collectives are timed in.
#pragma once

#include <ddp/ddp.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace bench {

using Memory = std::unique_ptr<void, std::function<void(void*)>>;

// Zeroed, and aligned to a cache line. mode: "own", which is memory such as any program's, or
// "group", of ddp_mem_alloc.
Memory collective_memory(ddp_group* group, const std::string& mode, std::size_t bytes);

}  // namespace bench
