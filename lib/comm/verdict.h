// A verdict is the error that all ranks of a group agree on. Its form in the store, and the
// sentences that errors between ranks share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "util/error.h"

namespace libddp {

// The form of a verdict in the store.
std::string encode_verdict(const ErrorInfo& error);
// Malformed text gives an INTERNAL error that quotes it.
ErrorInfo decode_verdict(std::string_view text);

// The advice where a rank may have ended its loop before the others. Stands behind another
// sentence.
inline constexpr const char* kUnevenInputs =
    "; if it ran out of inputs before the others, create the contexts with DDP_CONTEXT_JOIN and "
    "call ddp_join after the loop";

// Whether a transport may fail in this way because of what happened to another rank.
constexpr bool may_be_an_echo(ddp_status code) {
    return code == DDP_ERROR_TIMEOUT || code == DDP_ERROR_RANK_FAILED ||
           code == DDP_ERROR_ABORTED || code == DDP_ERROR_UNAVAILABLE;
}

// "rank 3", "ranks 1, 4, 7"; of many, the first 20.
std::string ranks_text(const std::vector<std::int32_t>& ranks);

// This process, for messages: "pid 7 on host".
std::string process_text();

// The error that kept this process from joining a group as a rank.
ErrorInfo could_not_join(std::int32_t rank, const std::string& group, ErrorInfo error);

// An error that a rank has with itself, so that it reads right on the others: it names the rank,
// unless it names one already.
ErrorInfo on_rank(std::int32_t rank, ErrorInfo error);

// A wait of this rank has ended because the program wants that, and the group does not know yet.
inline bool is_interruption(const ErrorInfo& error) {
    return error.code == DDP_ERROR_INTERRUPTED && error.rank < 0;
}

// The program of this rank has ended its wait for `what`.
inline ErrorInfo interruption(std::int32_t rank, const std::string& what, std::int32_t bucket = -1,
                              std::int64_t step = -1) {
    return {DDP_ERROR_INTERRUPTED,
            str("rank ", rank, " was interrupted while it waited for ", what),
            rank,
            -1,
            bucket,
            step};
}

}  // namespace libddp
