// The control plane of a group: makes the failure of one rank the same error on every rank, and finds out who is to
// blame.
//
// Ranks agree through the store on a single verdict, the first one written:
//   - a rank that dies: the store writes the last will of its connection;
//   - a process that exits without leaving: the same, but it has put the exit and its status into the will;
//   - a rank that sees a mismatch, aborts or lacks a gradient reports it;
//   - a timeout: the first rank to see it asks everyone how far they are, and blames those who left before, are silent,
//     or are behind.
// Every rank watches for the verdict, so that even one whose own neighbours are well hears of it within milliseconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/other_groups.h"
#include "comm/signature.h"
#include "record/recorder.h"
#include "rendezvous/store.h"
#include "util/at_exit.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

// A verdict is the error that all ranks of a group agree on. This is its form in the store.
std::string encode_verdict(const ErrorInfo& error);

// Below the prefix of a group's keys: how far a rank had come that has left.
std::string left_key(std::int32_t rank);
// The verdict.
inline constexpr const char* kVerdictKey = "verdict";
// Below the prefix of a group's keys: those of groups that were split from it, which have monitors of their own.
inline constexpr const char* kKeysOfParts = "split/";

// Malformed text gives an INTERNAL error that quotes it.
ErrorInfo decode_verdict(std::string_view text);

// The advice where a rank may have ended its loop before the others. Stands behind another sentence.
inline constexpr const char* kUnevenInputs =
    "; if it ran out of inputs before the others, create the contexts with DDP_CONTEXT_JOIN and call ddp_join after "
    "the loop";

// Whether a transport may fail in this way because of what happened to another rank.
constexpr bool may_be_an_echo(ddp_status code) {
    return code == DDP_ERROR_TIMEOUT || code == DDP_ERROR_RANK_FAILED || code == DDP_ERROR_ABORTED ||
           code == DDP_ERROR_UNAVAILABLE;
}

// "rank 3", "ranks 1, 4, 7"; of many, the first 20.
std::string ranks_text(const std::vector<std::int32_t>& ranks);

// This process, for messages: "pid 7 on host".
std::string process_text();

// The error that kept this process from joining a group as a rank.
ErrorInfo could_not_join(std::int32_t rank, const std::string& group, ErrorInfo error);

// An error that a rank has with itself, so that it reads right on the others: it names the rank, unless it names one already.
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

class Monitor final : OneOfGroups {
public:
    struct Config {
        std::shared_ptr<Store> store;
        std::string prefix;  // of this group's keys
        std::int32_t rank = 0;
        std::int32_t world = 1;
        std::int32_t store_rank = -1;  // the rank whose process runs the store, -1: none of the group
        std::string identity;          // "pid 12 on host x", for messages
        std::string group;             // its name, for messages
        record::Recorder recorder{};
        bool goes_on = false;  // its owner forms another group when this one breaks
    };

    // on_verdict runs once, on the thread that learns of the verdict first: the monitor's own or one inside report().
    Monitor(Config config, std::function<void(const ErrorInfo&)> on_verdict);
    ~Monitor();  // leaves in good order unless leave() was called

    // Takes this rank's place in the group and begins to watch. From then on the other ranks hear of this one's death. Throws:
    // ALREADY_EXISTS if another process has the rank; then, and after any other failure, resolve() and report() still work.
    void start();

    // Whether a process has taken this rank.
    bool has_come(std::int32_t rank) const { return config_.store->check({rank_key(rank)}); }

    // This rank is about to run the operation.
    void begins(const Signature& operation);
    void ends();

    // Makes `error` the verdict unless there is one already; returns the verdict.
    ErrorInfo report(const ErrorInfo& error);

    // The same within kBrieflyMs, for a program that does not want to wait any more: if the store does not answer until then, the
    // verdict stands here, and the monitor's thread goes on telling the others.
    ErrorInfo report_briefly(const ErrorInfo& error);

    // The same for what broke another group of these ranks. store_silent: their common store did not answer there. An interruption
    // stands here at once, and the monitor's thread tells the others.
    ErrorInfo adopt(const ErrorInfo& error, bool store_silent);
    // Whether the store was found not to answer, though its connection stands.
    bool store_silent() const;

    // The transport failed with `local`, which may be only the echo of the real cause. Waits briefly for a verdict,
    // finds out who left or hangs, and returns what all ranks will say. advice: what to do about a rank that is missing.
    ErrorInfo resolve(const ErrorInfo& local, const std::string& operation, const std::string& advice = "");

    // The verdict, if there is one.
    ErrorInfo verdict() const;

    // Whether the caller is inside on_verdict on the monitor's thread.
    bool on_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

    // Says that this rank leaves on purpose. Bounded; errors are ignored, since the store may be gone already.
    void leave();

    // Leaves, and waits until all ranks have, the others after hearing of the verdict.
    void leave_last(std::int64_t timeout_ms);

private:
    static constexpr const char* kClaims = "rank/";  // the key below has the process that is this rank
    const std::string& group_name() const override { return config_.group; }
    const std::string& group_keys() const override { return config_.prefix; }
    std::string under_way() const override;
    void other_broke(const std::string& story) override;

    enum class Service { kAnswers, kSilent, kLost, kGone };
    struct Answers {
        std::vector<std::int32_t> silent, behind, left;  // left: before they came to this operation
        std::string elsewhere;  // what the first of `behind` is in with another group; empty: nothing
    };

    void claim_rank();
    void let_go_of_keys();
    void let_a_cut_off_rank_read(const Deadline& deadline);
    void loop();
    void wait_for_event(std::unique_lock<std::mutex>& lock);
    void post(std::function<void()> event);
    ErrorInfo agree_on(const ErrorInfo& error);
    void accept(ErrorInfo verdict);
    void connection_lost(const std::string& reason, bool graceful);
    void accept_loss_of_store(const std::string& reason);
    ErrorInfo verdict_on_lost_connection(Store& again, const std::string& reason);
    ErrorInfo stored_verdict(Store& store, const ErrorInfo& mine) const;
    void say_exit(int status, const Deadline& deadline);
    void tell_before_the_end(const ErrorInfo& verdict, const Deadline& deadline);
    // With the lock held.
    bool nothing_to_wait_for() const { return !verdict_.ok() || store_gone_; }
    bool wait_for_verdict(std::int64_t ms);
    bool store_gone() const;
    Service look_at_store();
    Service note_silence();  // the store did not answer in time; kGone if the connection has ended meanwhile
    ErrorInfo blame_store_rank(const ErrorInfo& local, const std::string& operation);
    ErrorInfo blame_for_timeout(const ErrorInfo& local, const std::string& operation, const std::string& advice);
    ErrorInfo blame_silent(const std::vector<std::int32_t>& silent, const ErrorInfo& local,
                           const std::string& operation);
    ErrorInfo blame_for_loss(const ErrorInfo& local, const std::string& operation, const std::string& advice);
    ErrorInfo left_too_early(const std::vector<std::int32_t>& ranks, ErrorInfo local, const std::string& operation,
                             const std::string& advice) const;
    std::vector<std::int32_t> ranks_that_left() const;
    std::string why_they_left(const std::vector<std::int32_t>& ranks) const;
    Answers ask_everyone();
    std::string key(const std::string& name) const { return config_.prefix + name; }
    std::string rank_key(std::int32_t rank) const { return key(str(kClaims, rank)); }

    const Config config_;
    const std::function<void(const ErrorInfo&)> on_verdict_;
    std::atomic<std::int64_t> progress_{0}, ended_operations_{0};
    mutable std::mutex operation_mutex_;
    Signature operation_{};  // the newest, which is under way if ended_operations_ < progress_

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    ErrorInfo verdict_;
    Deadline verdict_stays_ = Deadline::after_ms(0);  // until then the store does
    bool store_gone_ = false;                         // nothing may wait for it any more
    bool store_silent_ = false;                       // that is why
    bool losing_ = false;                             // the connection was lost, and the thread finds out why
    bool claimed_ = false;                            // this rank is this process's
    bool left_ = false;
    Deadline leaves_by_ = Deadline::after_ms(0);  // set by leave(), for all that this rank still does in the store
    bool stopping_ = false;
    std::deque<std::function<void()>> events_;
    std::string other_broke_;       // of another group of this process, the first; empty: none
    ErrorInfo ended_;               // how the first process exits that has not left, whose own store may end with it
    Store::Watch watches_[4] = {};  // 0: none
    std::thread thread_;
    std::optional<AtExit> at_exit_;      // until this rank leaves
    std::optional<AmongGroups> others_;  // since the rank was taken
};

}  // namespace libddp
