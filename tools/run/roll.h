// The members of an elastic job, as its store knows them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "rendezvous.h"

namespace ddprun {

// The interval at which a wait for the end of members asks the store.
inline constexpr Milliseconds kBetweenLooksAtStore{100};

class Roll {
public:
    // host: this one, as members name it.
    Roll(Store& store, std::string host) : store_(store), host_(std::move(host)) {}

    // Why the store does not answer. "": it does.
    std::string silence() const;
    // The process that ddprun started with this pid, or one that it started, has called
    // ddp_elastic_leave.
    bool has_left(pid_t pid) const;
    // The member is this process, or one that it started.
    bool names(const std::string& member, pid_t pid) const;
    // The members of the newest roster. Empty if there is none, or the store does not answer.
    std::vector<std::string> newest() const;
    // This ddprun takes part in the job of another, or no longer does.
    void take_part(bool begins);
    // Another ddprun takes part.
    bool others_take_part() const;
    // Tells every ddprun of the job that these members have finished it.
    void finish(const std::vector<std::string>& members);
    // The members that have finished the job. Empty: it goes on, or the store does not answer.
    std::vector<std::string> finishers() const;
    // Each of these members has died, ended or left, and so has each that has trained with them
    // since. No members: those of the newest roster. False if the store does not answer.
    bool all_gone(const std::vector<std::string>& members) const;

private:
    Store& store_;
    const std::string host_;
};

}  // namespace ddprun
