// The control plane of a group: makes the failure of one rank the same error on every rank, and
// finds out who is to blame.
//
// Ranks agree through the store on a single verdict, the first one written:
//   - a rank that dies: the store writes the last will of its connection;
// - a process that exits without leaving: the same, but it has put the exit and its status into the
//   will;
//   - a rank that sees a mismatch, aborts or lacks a gradient reports it;
// - a timeout: the first rank to see it asks everyone how far they are, and blames those who left
//   before, are silent, or are behind. Every rank watches for the verdict, so that even one whose
//   own neighbours are well hears of it within milliseconds.
//
// monitor_state.h says what a monitor does when. Monitor does it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/group_keys.h"
#include "comm/monitor_state.h"
#include "comm/monitor_thread.h"
#include "comm/other_groups.h"
#include "comm/progress.h"
#include "comm/rank_claim.h"
#include "util/at_exit.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/mutex.h"

namespace libddp {

class Monitor final : OneOfGroups {
public:
    using Config = MonitorConfig;

    // on_verdict runs once, on the thread that learns of the verdict first: the monitor's own or
    // one inside report().
    Monitor(Config config, std::function<void(const ErrorInfo&)> on_verdict);
    ~Monitor();  // leaves in good order unless leave() was called

    // Takes this rank's place in the group and begins to watch. From then on the other ranks hear
    // of this one's death. Throws: ALREADY_EXISTS if another process has the rank; then, and after
    // any other failure, resolve() and report() still work.
    void start();

    // Whether a process has taken this rank.
    bool has_come(std::int32_t rank) const {
        return config_.store->check({config_.key(group_keys::claim(rank))});
    }

    // The link says there what this rank is at.
    Progress& progress() { return progress_; }

    // Makes `error` the verdict unless there is one already; returns the verdict.
    ErrorInfo report(const ErrorInfo& error);

    // The same within kBrieflyMs, for a program that does not want to wait any more: if the store
    // does not answer until then, the verdict stands here, and the monitor's thread goes on telling
    // the others.
    ErrorInfo report_briefly(const ErrorInfo& error);

    // The same for what broke another group of these ranks. store_silent: their common store did
    // not answer there. An interruption stands here at once, and the monitor's thread tells the
    // others.
    ErrorInfo adopt(const ErrorInfo& error, bool store_silent);
    // Whether the store was found not to answer, though its connection stands.
    bool store_silent() const;

    // The transport failed with `local`, which may be only the echo of the real cause. Waits
    // briefly for a verdict, finds out who left or hangs, and returns what all ranks will say.
    // advice: what to do about a rank that is missing.
    ErrorInfo resolve(const ErrorInfo& local, const std::string& operation,
                      const std::string& advice = "");

    // The verdict, if there is one.
    ErrorInfo verdict() const;

    // Whether the caller is inside on_verdict on the monitor's thread.
    bool on_own_thread() const { return thread_.is_this_thread(); }

    // Says that this rank leaves on purpose. Bounded; errors are ignored, since the store may be
    // gone already.
    void leave();

    // Leaves, and waits until all ranks have, the others after hearing of the verdict.
    void leave_last(std::int64_t timeout_ms);

private:
    using Event = MonitorEvent;
    using Action = MonitorAction;

    const std::string& group_name() const override { return config_.group; }
    const std::string& group_keys() const override { return config_.prefix; }
    std::string under_way() const override { return progress_.under_way(); }
    void other_broke(const std::string& story) override;

    Action raise(Event event);
    void accept(ErrorInfo verdict);
    ErrorInfo agree_on(const ErrorInfo& error);
    void wait_for_verdict(std::int64_t ms);
    Event look_at_store();
    void answer();
    void connection_ended(const std::string& reason, bool graceful);
    void explain_loss(const std::string& reason);
    void say_exit(int status, const Deadline& deadline);

    const Config config_;
    const std::function<void(const ErrorInfo&)> on_verdict_;
    Progress progress_;
    RankClaim claim_;

    mutable Mutex mutex_;
    Condition changed_;
    MonitorState state_ DDP_GUARDED_BY(mutex_) = MonitorState::kOutside;
    ErrorInfo verdict_ DDP_GUARDED_BY(mutex_);
    // until then the store does
    Deadline verdict_stays_ DDP_GUARDED_BY(mutex_) = Deadline::after_ms(0);
    // of another group of this process, the first; empty: none
    std::string other_broke_ DDP_GUARDED_BY(mutex_);
    // how the first process exits that has not left, whose own store may end with it
    ErrorInfo ended_ DDP_GUARDED_BY(mutex_);

    MonitorThread thread_;
    std::vector<Store::Watch> watches_;
    std::optional<AtExit> at_exit_;      // until this rank leaves
    std::optional<AmongGroups> others_;  // since the rank was taken
};

}  // namespace libddp
