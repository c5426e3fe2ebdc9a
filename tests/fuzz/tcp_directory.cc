// Where ranks listen, as they wrote it into the store. The first byte is the world size.
#include "backends/tcp/directory.h"
#include "fuzz/target.h"

DDP_FUZZ_TARGET(tcp_directory, input) {
    using namespace libddp;
    fuzz::Reader bytes(input);
    const int world = 1 + static_cast<int>(bytes.below(6));
    const std::string_view text = bytes.rest();
    std::vector<tcp::Listening> ranks;
    if (!fuzz::accepts([&] { ranks = tcp::read_directory(text, world); })) return;
    fuzz::check(ranks.size() == static_cast<std::size_t>(world),
                "a directory has another number of ranks than the world");
    std::string all;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const tcp::Listening& rank = ranks[i];
        const std::string line = tcp::write_listening(rank);
        fuzz::check(tcp::read_listening(line, static_cast<int>(i)) == rank,
                    "a line changes when it is written and read");
        fuzz::check(0 < rank.port && rank.port <= 65'535 && rank.lanes > 0,
                    "a number is out of range");
        fuzz::accepts(
            [&] { tcp::require_same_settings(ranks.front(), rank, static_cast<int>(i)); });
        all += (i == 0 ? "" : "\n") + line;
    }
    fuzz::check(tcp::read_directory(all, world) == ranks,
                "a directory changes when it is written and read");
}
