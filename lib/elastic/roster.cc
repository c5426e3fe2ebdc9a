#include "elastic/roster.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "elastic/keys.h"
#include "rendezvous/store.h"
#include "util/error.h"
#include "util/printable.h"

namespace libddp {

std::string JobKeys::roster() const {
    return prefix + elastic_keys::kRoster;
}

std::string JobKeys::gone(const std::string& id) const {
    return prefix + elastic_keys::kGone + "/" + id;
}

bool read_number(std::string_view text, std::int64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
}

// Far from where they, or loaded_steps() of them, would overflow.
bool read_steps(std::string_view text, std::int64_t& steps) {
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    return read_number(text, steps) && steps <= kMost && steps >= -kMost;
}

bool is_among(const std::vector<Member>& members, const std::string& id) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& member) { return member.id == id; });
}

void put_hosts_together(std::vector<Member>& members) {
    std::map<std::string, std::size_t> first;  // the place of each host's first member
    const auto host_of = [](const Member& member) {
        const std::size_t begin = member.id.find('-');
        return begin == std::string::npos
                   ? member.id
                   : member.id.substr(begin, member.id.find('-', begin + 1) - begin);
    };
    for (std::size_t i = 0; i < members.size(); ++i) first.emplace(host_of(members[i]), i);
    std::stable_sort(members.begin(), members.end(), [&](const Member& a, const Member& b) {
        return first.at(host_of(a)) < first.at(host_of(b));
    });
}

// A rank that joins a job under way gets its state, whatever it has loaded from a checkpoint, also
// if a first attempt to join failed.
std::vector<std::int32_t> Roster::donors() const {
    std::vector<std::int32_t> ranks;
    const auto find = [&](bool among_loaded) {
        std::int64_t newest = 0;
        for (std::size_t i = 0; i < members.size(); ++i) {
            const std::int64_t steps =
                among_loaded ? loaded_steps(members[i].steps) : members[i].steps;
            if (steps < newest) continue;
            if (steps > newest) ranks.clear();
            newest = steps;
            ranks.push_back(static_cast<std::int32_t>(i));
        }
    };
    find(false);
    if (ranks.empty()) find(true);
    // Nobody has a state yet: the values of rank 0 are those of the job.
    return ranks.empty() ? std::vector<std::int32_t>{0} : ranks;
}

std::int64_t Roster::newest() const {
    if (members.empty()) return -1;
    const std::int64_t steps = members[static_cast<std::size_t>(donors().front())].steps;
    return std::max(steps, loaded_steps(steps));
}

std::string RosterRecord::encode() const {
    std::string lines = std::to_string(number) + " " + std::to_string(fence) + "\n";
    for (const Member& member : members)
        lines += member.id + " " + std::to_string(member.steps) + "\n";
    return lines;
}

RosterRecord RosterRecord::decode(std::string text) {
    RosterRecord record;
    bool good = true;
    std::string_view rest = text;
    // Returns the text before the last space of the next line, and puts the number behind it into
    // `value`.
    const auto next = [&](std::int64_t& value) {
        const std::size_t end = rest.find('\n');
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
        const std::size_t space = line.rfind(' ');
        good = good && end != std::string_view::npos && space != std::string_view::npos &&
               read_steps(line.substr(space + 1), value);
        return good ? line.substr(0, space) : std::string_view();
    };
    good = read_steps(next(record.fence), record.number) && good && record.number > 0 &&
           record.fence >= 0;
    while (good && !rest.empty()) {
        Member member;
        member.id = next(member.steps);
        good = good && !member.id.empty() && !is_among(record.members, member.id);
        record.members.push_back(std::move(member));
    }
    if (!good) fail(DDP_ERROR_INTERNAL, "the store holds a malformed roster: ", in_quotes(text));
    record.text = std::move(text);
    return record;
}

// Looks first: a key that does not exist and a store that is silent give get() the same error, and
// the wait is not to be done twice.
std::optional<std::string> find_value(Store& store, const std::string& key) {
    while (store.check({key})) try {
            return store.get(key, -1);
        } catch (const Error& error) {
            // the next look tells a silent store from a removed key
            if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        }
    return std::nullopt;
}

// One key has the newest roster, and each replaces the one before: so there is one history, and a
// proposal that comes late finds a key that has changed.
RosterRecord newest_roster(Store& store, const JobKeys& keys) {
    auto text = find_value(store, keys.roster());
    return text ? RosterRecord::decode(std::move(*text)) : RosterRecord{};
}

}  // namespace libddp
