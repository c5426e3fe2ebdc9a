// Shared by the targets of channels.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "wire/channel.h"

namespace fuzz {

// As many bytes as come, in pieces of the sizes that the input wants; large ones after its end.
inline std::string receive(libddp::wire::Channel& from, Reader& bytes) {
    std::string came;
    accepts([&] {
        for (;;) {
            std::vector<char> first(bytes.empty() ? 20'000 : 1 + bytes.byte() * 40U),
                second(1 + bytes.byte());
            const iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
            const std::size_t size = from.receive(parts, 2);
            if (size == 0) return;
            came.append(first.data(), std::min(size, first.size()));
            if (size > first.size()) came.append(second.data(), size - first.size());
        }
    });
    return came;
}

}  // namespace fuzz
