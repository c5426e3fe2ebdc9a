#include "comm/rank_claim.h"

#include <algorithm>
#include <random>

#include "comm/verdict.h"
#include "util/log.h"

namespace libddp {
namespace {

// How long the store has for what a leaving rank does in it. It may live in a rank that is stopped.
constexpr std::int64_t kLeavingMs = 1'000;
// How long the end of a lost connection takes to become the verdict.
constexpr std::int64_t kVerdictMs = 1'000;

}  // namespace

// The will comes first: whatever ends this process from here on, the others hear of it. It is void
// while another process has the rank.
void RankClaim::take() {
    auto& store = *config_.store;
    const std::string mine = str(config_.identity, " #", std::random_device{}());
    const auto taken_by = [&](const std::string& holder) {
        throw Error(ErrorInfo{DDP_ERROR_ALREADY_EXISTS,
                              str("rank ", config_.rank, " of group '", config_.group, "' at ",
                                  store.describe(), " is taken already by ",
                                  holder.substr(0, holder.find(" #")), ": start each rank once"),
                              config_.rank});
    };
    // Ranks that are threads of one process share a connection, and so the will of one that is
    // there already.
    if (store.check({my_key()})) taken_by(store.get(my_key()));
    ErrorInfo will{DDP_ERROR_RANK_FAILED,
                   str("rank ", config_.rank, " (", config_.identity,
                       ") died: its connection to the store ended without a goodbye (killed, "
                       "crashed, _exit, or cut off)"),
                   config_.rank};
    store.set_will(config_.key(group_keys::kVerdict), encode_verdict(will), my_key(), mine);
    const std::string holder = store.compare_set(my_key(), "", mine);
    if (holder != mine) {
        store.remove_will(config_.key(group_keys::kVerdict));
        taken_by(holder);
    }
    taken_ = true;
}

// The store has taken this rank for dead then, or soon will: all ranks say what it says. If it ends
// in the middle of this, it has still outlived the connection, and the loss is this rank's.
ErrorInfo RankClaim::after_a_cut(Store& again, const std::string& reason,
                                 std::int64_t begun) const {
    ErrorInfo verdict{
        DDP_ERROR_RANK_FAILED,
        str("rank ", config_.rank, " (", config_.identity, ") lost its connection to the store at ",
            again.describe(), ", which still runs: ", reason),
        config_.rank};
    if (!taken_) return verdict;
    try {
        verdict = stored_verdict(again, verdict);
        again.set(config_.key(group_keys::left(config_.rank)),
                  std::to_string(begun));  // the store's process waits for it
    } catch (const Error& error) {
        log(LogLevel::kDebug, "the store ended soon after: ", error.what());
    }
    return verdict;
}

// Waits for the verdict that the end of the lost connection writes into the store; without one,
// writes this rank's.
ErrorInfo RankClaim::stored_verdict(Store& store, const ErrorInfo& mine) const {
    const std::string key = config_.key(group_keys::kVerdict);
    try {
        return decode_verdict(store.get(key, kVerdictMs));
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        return decode_verdict(store.compare_set(key, "", encode_verdict(mine)));
    }
}

// Whether anybody needs this rank is not known: the exit becomes the verdict, as a death does, when
// the connection ends.
void RankClaim::say_exit(int status, const std::string& why, const Deadline& deadline) const {
    auto& store = *config_.store;
    if (!store.answers(deadline.remaining_ms())) return;
    const std::string ended =
        encode_verdict({DDP_ERROR_RANK_FAILED,
                        str(why, why.empty() ? "" : ", and ", "rank ", config_.rank, " (",
                            config_.identity, ") ended: its process exited with status ", status,
                            " and had not left the group (ddp_group_free)",
                            status == 0 && why.empty() ? kUnevenInputs : ""),
                        config_.rank});
    store.set_will(config_.key(group_keys::kVerdict), ended);
    // The will ends with the store, which may be in this process. The second answer comes when the
    // server has told those who watch.
    store.set(config_.key(group_keys::kEnded), ended);
    store.answers(std::max<std::int64_t>(deadline.remaining_ms(), 1));
}

bool RankClaim::begin_to_leave() {
    if (leaving_.exchange(true)) return false;
    leaves_by_ = Deadline::after_ms(kLeavingMs);
    return true;
}

std::shared_ptr<Store> RankClaim::store_while_leaving() const {
    return config_.store->bounded(std::max<std::int64_t>(leaves_by_.remaining_ms(), 1));
}

void RankClaim::say_goodbye(std::int64_t begun, const std::string& why) const {
    try {
        const auto store = store_while_leaving();
        store->set(config_.key(group_keys::left(config_.rank)), str(begun, " ", why));
        store->remove_will(config_.key(group_keys::kVerdict));
    } catch (const Error& error) {
        log(LogLevel::kDebug, "leaving group: ", error.what());
    }
}

void RankClaim::let_a_cut_off_rank_read(const ErrorInfo& verdict, const Deadline& stays) const {
    if (config_.store_rank != config_.rank || verdict.code != DDP_ERROR_RANK_FAILED ||
        verdict.rank == config_.rank)
        return;
    const auto stays_ms = std::min(stays.remaining_ms(), leaves_by_.remaining_ms());
    try {
        if (stays_ms > 0)
            config_.store->wait({config_.key(group_keys::left(verdict.rank))}, stays_ms);
    } catch (const Error& error) {
        log(LogLevel::kDebug, "rank ", verdict.rank, " has not read the verdict: ", error.what());
    }
}

// The last to let go removes the keys. A rank that died never does: then they stay. If the last
// rank dies on the way, the keys that claim ranks are still there: they keep everybody out who
// would find the others.
void RankClaim::let_go() const {
    if (!taken_) return;
    const auto starts = [&](const std::string& name, const char* part) {
        return name.starts_with(config_.key(part));
    };
    try {
        if (store_while_leaving()->add(config_.key(group_keys::kLetGo), 1) < config_.world) return;
        Store::Keys names = store_while_leaving()->list_keys(config_.prefix);
        std::erase_if(names,
                      [&](const std::string& name) { return starts(name, group_keys::kParts); });
        std::partition(names.begin(), names.end(),
                       [&](const std::string& name) { return !starts(name, group_keys::kClaims); });
        for (const std::string& name : names) store_while_leaving()->remove(name);
    } catch (const std::exception& error) {
        log(LogLevel::kDebug, "keys of group '", config_.group,
            "' stay in the store: ", error.what());
    }
}

}  // namespace libddp
