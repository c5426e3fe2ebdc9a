// Rosters: the lists of processes that train together while processes come and go, and their keys
// in the store.
//
// Keys, below elastic/<job>/:
//     comers             how many processes have come
//     roster             the newest roster: its number and members
//     meet/<n>/<id>      a process wants to be in roster n; its steps, as Member has them
//     came/<n>           how many of these were not in roster n - 1
//     came/<n>/<i>       the i-th of them has come
//     join/<n>           one of these was not in roster n - 1
//     leave/<n>          a member of roster n - 1 is about to leave
//     due/<n>            the step before which the members meet for roster n
//     decided/<n>        there is a roster n
//     group/<n>/         the group of roster n
//     gone/<id>          a process has died, ended or left
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace libddp {

struct JobKeys {
    std::string prefix;  // elastic/<job>/

    std::string of(const char* what, std::int64_t roster) const {
        return prefix + what + "/" + std::to_string(roster);
    }
    std::string roster() const;
    std::string gone(const std::string& id) const;
};

// How a process says that it has loaded so many steps from a checkpoint, and has never had the
// state of a job: a number below -1. loaded_steps() of that number gives the steps again, and -1
// stays -1.
constexpr std::int64_t loaded_steps(std::int64_t steps) {
    return -2 - steps;
}

struct Member {
    std::string id;  // of one process, for as long as it stays
    // of the job that it has applied, or loaded_steps; -1: it has come without a known state
    std::int64_t steps = -1;
    bool operator==(const Member&) const = default;
};

struct Roster {
    std::int64_t number = 0;  // counts from 1; 0: there was none
    // greater than that of every roster before, also of a job that met at the same store before
    std::int64_t fence = 0;
    std::vector<Member> members;    // by rank, each host's in a row
    std::int32_t rank = -1;         // of this process
    bool stayed = false;            // this process was in the roster before
    std::int32_t joined = 0;        // how many of the members were not
    std::vector<std::string> left;  // who was

    // The ranks that have the state of the job, and after how many steps; -1: nobody has one.
    // Loaded steps count if nobody has it.
    std::vector<std::int32_t> donors() const;
    std::int64_t newest() const;
};

// A roster as the store has it: a line with its number and its fence, and one for each member.
struct RosterRecord {
    std::int64_t number = 0;  // 0: nothing has been decided
    std::int64_t fence = 0;
    std::vector<Member> members;
    std::string text;  // as the store has it

    std::string encode() const;
    static RosterRecord decode(std::string text);  // throws Error (INTERNAL)
};

// Numbers in keys and values. False: `text` is none.
bool read_number(std::string_view text, std::int64_t& number);
bool read_steps(std::string_view text, std::int64_t& steps);

bool is_among(const std::vector<Member>& members, const std::string& id);

// The members of a host get ranks in a row: hosts in the order of their first members, and the
// members of each in the order in which they are. An id says the host: elastic/keys.h.
void put_hosts_together(std::vector<Member>& members);

class Store;
// None: there is no such key.
std::optional<std::string> find_value(Store& store, const std::string& key);
// Number 0 if nothing has been decided.
RosterRecord newest_roster(Store& store, const JobKeys& keys);

}  // namespace libddp
