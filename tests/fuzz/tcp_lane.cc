// The messages of another rank on a lane of the backend tcp. Two bytes at a time say what this rank
// does.
#include <vector>

#include "backends/tcp/lane.h"
#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "wire/channels.h"

namespace fuzz::tcp_lane {
namespace {

using namespace libddp;
using tcp::MessageType;

MessageType type_of(std::uint8_t what) {
    return (what & 1) != 0 ? MessageType::kOpening : MessageType::kData;
}

// As a rank writes it.
std::string message(MessageType type, std::uint64_t operation, std::string_view data,
                    std::uint64_t size) {
    std::string text;
    const auto add = [&](const auto& number) {
        text.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    add(type);
    add(std::uint32_t{0});
    add(operation);
    add(size);
    return text.append(data);
}

}  // namespace

DDP_FUZZ_TARGET(tcp_lane, input) {
    Reader bytes(input);
    Sockets sockets;
    const std::size_t number = bytes.below(2);
    std::vector<std::vector<char>> memory;
    memory.reserve(input.size());  // where messages go stays
    int missing = 0, expected = 0;
    std::uint64_t operation = 1;
    tcp::Lane lane(1, number, wire::make_plain_channel(std::move(sockets.mine)));
    while (!bytes.empty()) {
        const std::uint8_t what = bytes.byte(), size = bytes.byte();
        switch (what >> 1 & 7) {
            case 0: {
                memory.emplace_back(size);
                lane.expect(type_of(what), operation, memory.back().data(), size, &missing);
                ++missing;
                ++expected;
                break;
            }
            case 1: {
                // One that fits, unless the input wants another size.
                const std::string_view data = bytes.piece();
                const std::uint64_t told = size < 250 ? data.size() : bytes.number<std::uint64_t>();
                sockets.send(message(size == 249 ? MessageType::kGoodbye : type_of(what), operation,
                                     data, told));
                break;
            }
            case 2:
                sockets.send(bytes.take(size));
                break;
            case 3:
                memory.emplace_back(size);
                lane.send(type_of(what), operation, memory.back().data(), size);
                break;
            case 4:
                ++operation;
                break;
            case 5:
                sockets.receive();
                break;
            case 6:
                if (!lane.receiving()) accepts([&] { lane.peer_closed(); });
                break;
            default:
                if (!accepts([&] { lane.move(); })) return;
        }
        check(0 <= missing && missing <= expected, "more messages have come than were expected");
    }
    sockets.end();
    for (bool moves = true; moves;) moves = accepts([&] { moves = lane.move(); }) && moves;
    // As after a failed operation.
    lane.forget();
    memory.clear();
    if (!lane.cut()) lane.send(MessageType::kGoodbye, operation, nullptr, 0);
    for (bool moves = true; moves;) moves = accepts([&] { moves = lane.move(); }) && moves;
}

}  // namespace fuzz::tcp_lane
