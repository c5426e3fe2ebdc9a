#include "roll.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "elastic/keys.h"
#include "util/text.h"

namespace ddprun {
namespace {

namespace keys = libddp::elastic_keys;

constexpr const char* kFinished = "ddp/run/finished";
constexpr const char* kTakePart = "ddp/run/others";

// "elastic/JOB/KIND/NAME". A job's name holds no '/'.
struct Key {
    std::string kind, name;
};

std::optional<Key> parse(const std::string& text) {
    const std::size_t last = text.rfind('/');
    const std::size_t before =
        last == std::string::npos || last == 0 ? last : text.rfind('/', last - 1);
    if (before == std::string::npos || last == before) return std::nullopt;
    return Key{text.substr(before + 1, last - before - 1), text.substr(last + 1)};
}

struct Roster {
    long number = 0;
    std::vector<std::string> members;  // as the keys that say how they went
};

// The newest of the jobs in the store. Its number is 0 if there is none.
Roster newest_roster(Store& store) {
    const std::string end = std::string("/") + keys::kRoster;
    Roster newest;
    for (const std::string& key : store.list(keys::kJobs)) {
        if (!key.ends_with(end)) continue;
        const std::string job = key.substr(0, key.size() + 1 - end.size());
        libddp::TextIn lines(store.await(key));
        Roster roster;
        std::string fence, steps;
        lines >> roster.number >> fence;
        for (std::string id; lines >> id >> steps;)
            roster.members.push_back(job + keys::kGone + "/" + id);
        if (roster.number > newest.number) newest = std::move(roster);
    }
    return newest;
}

}  // namespace

bool Roll::names(const std::string& member, pid_t pid) const {
    return member.ends_with("-" + host_ + "-" + std::to_string(pid));
}

std::string Roll::silence() const try {
    store_.get(keys::kJobs);
    return "";
} catch (const std::runtime_error& error) {
    return error.what();
}

bool Roll::has_left(pid_t pid) const try {
    // a process may have joined several times; ids sort in the order of coming
    std::string newest, its_key;
    for (const std::string& text : store_.list(keys::kJobs)) {
        const std::optional<Key> key = parse(text);
        if (!key || key->kind != keys::kGone || !names(text, pid) || key->name < newest) continue;
        newest = key->name;
        its_key = text;
    }
    return !its_key.empty() && store_.get(its_key) == keys::kLeft;
} catch (const std::runtime_error&) {
    return false;
}

std::vector<std::string> Roll::newest() const try {
    return newest_roster(store_).members;
} catch (const std::runtime_error&) {
    return {};
}

void Roll::take_part(bool begins) try {
    store_.add(kTakePart, begins ? 1 : -1);
} catch (const std::runtime_error&) {  // its ranks will say so
}

bool Roll::others_take_part() const try {
    return store_.get(kTakePart).value_or("0") != "0";
} catch (const std::runtime_error&) {
    return false;
}

void Roll::finish(const std::vector<std::string>& members) try {
    std::string lines;
    for (const std::string& member : members) lines += member + '\n';
    store_.set(kFinished, lines);
} catch (const std::runtime_error&) {  // then others see it when the store goes
}

std::vector<std::string> Roll::finishers() const try {
    libddp::TextIn lines(store_.get(kFinished).value_or(""));
    std::vector<std::string> found;
    for (std::string member; std::getline(lines, member);) found.push_back(member);
    return found;
} catch (const std::runtime_error&) {
    return {};
}

bool Roll::all_gone(const std::vector<std::string>& members) const try {
    const std::vector<std::string> newest = newest_roster(store_).members;
    const auto is_in = [](const std::vector<std::string>& all, const std::string& member) {
        return std::find(all.begin(), all.end(), member) != all.end();
    };
    // The store may have forgotten that a member of an older roster has gone.
    const auto has_gone = [&](const std::string& member) {
        return !is_in(newest, member) || store_.get(member).has_value();
    };
    // A roster without any of them is of ranks that have waited for a place, and began anew.
    const bool goes_on = members.empty() || std::any_of(members.begin(), members.end(),
                                                        [&](const std::string& member) {
                                                            return is_in(newest, member);
                                                        });
    return std::all_of(members.begin(), members.end(), has_gone) &&
           (!goes_on || std::all_of(newest.begin(), newest.end(), has_gone));
} catch (const std::runtime_error&) {
    return false;
}

}  // namespace ddprun
