#include "comm/blame.h"

#include <algorithm>

#include "comm/progress.h"
#include "comm/verdict.h"
#include "util/deadline.h"
#include "util/log.h"
#include "util/options.h"

namespace libddp {
namespace {

// How long ranks have to answer when somebody asks after a timeout. A live process answers in
// milliseconds.
constexpr std::int64_t kAnswerMs = 500;

}  // namespace

ErrorInfo Blame::silent_store() const {
    ErrorInfo verdict = local;
    if (config.store_rank == config.rank) {
        verdict.message = str(operation, " on rank ", config.rank, ": ", local.message,
                              "; the store, which this process runs, does not answer either");
        return verdict;
    }
    verdict.code = DDP_ERROR_TIMEOUT;
    verdict.rank = config.store_rank;
    verdict.message =
        str(operation, ": ",
            config.store_rank < 0 ? std::string("the job's store")
                                  : str("rank ", config.store_rank, ", which runs the store,"),
            " does not answer (stopped, or cut off); ", local.message);
    return verdict;
}

std::vector<std::int32_t> Blame::ranks_that_left() const {
    const std::string folder = config.key(group_keys::kLeft);
    std::vector<std::int32_t> left;
    for (const auto& name : config.store->list_keys(folder))
        left.push_back(static_cast<std::int32_t>(
            parse_int(name.substr(folder.size()), 0, config.world - 1, name)));
    std::sort(left.begin(), left.end());
    return left;
}

// Ranks that do not answer are stopped or cut off. Those that answer with a smaller number have not
// come to this operation yet. Ranks that left do not answer, but wrote how far they had come.
Blame::Answers Blame::ask_everyone() const {
    Answers found;
    try {
        config.store->compare_set(config.key(group_keys::kAsk), "", std::to_string(config.rank));
        const auto left = ranks_that_left();
        auto answers = Deadline::after_ms(kAnswerMs);
        for (std::int32_t r = 0; r < config.world; ++r) {
            if (r == config.rank) continue;
            if (std::find(left.begin(), left.end(), r) != left.end()) {
                const auto name = config.key(group_keys::left(r));
                if (begun_in(config.store->get(name, -1), name) < begun) found.left.push_back(r);
                continue;
            }
            auto name = config.key(group_keys::answer(r));
            auto rest_ms = answers.remaining_ms();
            try {
                const auto answer = config.store->get(name, rest_ms > 0 ? rest_ms : -1);
                if (begun_in(answer, name) >= begun) continue;
                if (found.behind.empty()) found.elsewhere = text_in(answer);
                found.behind.push_back(r);
            } catch (const Error& error) {
                if (error.info().code != DDP_ERROR_TIMEOUT &&
                    error.info().code != DDP_ERROR_NOT_FOUND)
                    throw;
                found.silent.push_back(r);
            }
        }
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not ask the other ranks: ", error.what());
    }
    return found;
}

ErrorInfo Blame::silent_ranks(const std::vector<std::int32_t>& silent) const {
    ErrorInfo verdict = local;
    verdict.code = DDP_ERROR_TIMEOUT;
    verdict.rank = silent.front();
    verdict.message = str(operation, ": ", ranks_text(silent), silent.size() == 1 ? " does" : " do",
                          " not answer (stopped, or cut off from the store); ", local.message);
    return verdict;
}

ErrorInfo Blame::for_timeout() const {
    const auto [silent, behind, left, elsewhere] = ask_everyone();
    if (!left.empty()) return left_too_early(left);
    if (!silent.empty()) return silent_ranks(silent);
    ErrorInfo verdict = local;
    verdict.code = DDP_ERROR_TIMEOUT;
    if (!behind.empty()) {
        const std::string in_group = elsewhere.empty() ? "" : str(" in group '", config.group, "'");
        verdict.rank = behind.front();
        verdict.message =
            str(operation, in_group, ": ", ranks_text(behind), behind.size() == 1 ? " is" : " are",
                " alive but did not get there",
                elsewhere.empty() ? ""
                                  : str(": rank ", behind.front(), " is at ", elsewhere,
                                        ", so the ranks use their groups in a different order"),
                "; ", local.message, elsewhere.empty() ? advice : "");
    } else {
        verdict.message = str(operation, ": ", local.message);
    }
    return verdict;
}

// Nobody wrote a verdict. Either a rank left in good order while others still needed it, or one is
// stopped, or the network failed.
ErrorInfo Blame::for_loss(const std::function<void(std::int64_t ms)>& may_come) const {
    if (store_gone && config.store_rank >= 0) return left_too_early({config.store_rank});
    try {
        const auto left = ranks_that_left();
        if (!left.empty()) return left_too_early(left);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not look for ranks that left: ", error.what());
    }
    // A rank that gave up first looks as if it had gone; the cause is the one that it gave up on.
    const auto silent = ask_everyone().silent;
    if (!silent.empty()) {
        // A store with leases learns of a death later than a connection between ranks ends.
        if (const std::int64_t notices_ms = config.store->notices_death_ms(); notices_ms > 0)
            may_come(notices_ms);
        return silent_ranks(silent);
    }
    ErrorInfo verdict = local;
    verdict.message = str(operation, " on rank ", config.rank, ": ", local.message);
    return verdict;
}

// The error that broke another group of a rank that left; empty: nothing.
std::string Blame::why_they_left(const std::vector<std::int32_t>& ranks) const {
    try {
        for (const std::int32_t rank : ranks) {
            if (store_gone) break;
            const std::string why =
                text_in(config.store->get(config.key(group_keys::left(rank)), -1));
            if (!why.empty()) return why;
        }
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not read why ranks left: ", error.what());
    }
    return other_broke;
}

ErrorInfo Blame::left_too_early(const std::vector<std::int32_t>& ranks) const {
    ErrorInfo verdict = local;
    const bool own = std::find(ranks.begin(), ranks.end(), config.rank) != ranks.end();
    verdict.code = DDP_ERROR_RANK_FAILED;
    verdict.rank = own ? config.rank : ranks.front();
    if (own) {
        verdict.message = str("rank ", config.rank, " left the group before its ", operation,
                              " had ended; wait for each work before you free the group");
        return verdict;
    }
    const std::string why = why_they_left(ranks);
    verdict.message =
        str(why, why.empty() ? "" : ", and ", ranks_text(ranks),
            why.empty() ? " left the group" : str(" then left group '", config.group, "'"),
            " while rank ", config.rank, " still needed ", ranks.size() == 1 ? "it" : "them",
            " for ", operation, why.empty() ? advice : "");
    return verdict;
}

}  // namespace libddp
