// The claim of a rank in the store: no other process can take the rank, and the others hear how its
// process ends. Calls of the store throw Error, unless it says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "comm/group_keys.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

class RankClaim {
public:
    // `config` stays while this object lives.
    explicit RankClaim(const MonitorConfig& config) : config_(config) {}

    // Throws ALREADY_EXISTS if another process has the rank.
    void take();
    // Whether this process is the rank. It may have left.
    bool taken() const { return taken_; }

    // The verdict for a rank whose connection to the store was lost, although the store at `again`
    // still runs.
    ErrorInfo after_a_cut(Store& again, const std::string& reason, std::int64_t begun) const;

    // The will says from now on that the process exited. why: what happened before; empty: nothing.
    void say_exit(int status, const std::string& why, const Deadline& deadline) const;

    // From now on this rank is leaving. False: it was before. What it still does in the store is
    // bounded, and no failure matters.
    bool begin_to_leave();
    bool leaving() const { return leaving_; }
    // Writes how far this rank had come, and why it leaves, and removes the will.
    void say_goodbye(std::int64_t begun, const std::string& why) const;
    // The store ends with this process's group. A rank that was cut off from it would take that for
    // the death of this one.
    void let_a_cut_off_rank_read(const ErrorInfo& verdict, const Deadline& stays) const;
    // This rank reads none of the group's keys any more.
    void let_go() const;

private:
    std::string my_key() const { return config_.key(group_keys::claim(config_.rank)); }
    std::shared_ptr<Store> store_while_leaving() const;
    ErrorInfo stored_verdict(Store& store, const ErrorInfo& mine) const;

    const MonitorConfig& config_;
    std::atomic<bool> taken_{false}, leaving_{false};
    Deadline leaves_by_ = Deadline::after_ms(0);
};

}  // namespace libddp
