#include "backends/tcp/directory.h"

#include <charconv>

#include "util/error.h"
#include "util/printable.h"
#include "wire/sockets.h"

namespace libddp::tcp {
namespace {

constexpr int kMostPort = 65'535;

// Up to the next such byte, which is dropped.
std::string_view take_until(std::string_view& text, char end) {
    const std::string_view taken = text.substr(0, text.find(end));
    text.remove_prefix(std::min(text.size(), taken.size() + 1));
    return taken;
}

// 0: it is no number from 1 on.
int number_in(std::string_view text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
}

std::string settings_text(const Listening& listening) {
    return str(listening.wire, " ", listening.lanes);
}

}  // namespace

std::string write_listening(const Listening& listening) {
    return str(settings_text(listening), " ", listening.address, " ", listening.port);
}

Listening read_listening(std::string_view line, int rank) {
    std::string_view rest = line;
    Listening listening;
    listening.wire = take_until(rest, ' ');
    listening.lanes = number_in(take_until(rest, ' '));
    listening.address = take_until(rest, ' ');
    listening.port = number_in(rest);
    const bool good = !listening.wire.empty() && listening.lanes > 0 &&
                      is_numeric(listening.address) && listening.port > 0 &&
                      listening.port <= kMostPort;
    if (good) return listening;
    throw Error(
        {DDP_ERROR_INTERNAL,
         str("the store has ", in_quotes(line), " where rank ", rank,
             " says how it can be reached: no wire, number of lanes, numeric address and port"),
         rank});
}

std::vector<Listening> read_directory(std::string_view text, int world) {
    std::vector<Listening> ranks;
    std::string_view rest = text;
    while (!rest.empty() && ranks.size() <= static_cast<std::size_t>(world))
        ranks.push_back(read_listening(take_until(rest, '\n'), static_cast<int>(ranks.size())));
    if (ranks.size() != static_cast<std::size_t>(world))
        fail(DDP_ERROR_INTERNAL, "the store has the addresses of ",
             rest.empty() ? "" : "more than ", ranks.size(), " ranks, and the group has ", world);
    return ranks;
}

void require_same_settings(const Listening& of_rank_0, const Listening& theirs, int rank) {
    if (theirs.wire == of_rank_0.wire && theirs.lanes == of_rank_0.lanes) return;
    throw Error(
        {DDP_ERROR_MISMATCH,
         str("rank ", rank, " has wire and lanes '", settings_text(theirs), "', and rank 0 has '",
             settings_text(of_rank_0), "'; give all ranks the same backend_options and DDP_WIRE"),
         rank});
}

}  // namespace libddp::tcp
