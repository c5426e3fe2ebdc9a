#include "util/processors.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>

#include "util/text.h"

namespace libddp {
namespace {

// Far more than any machine has: where the system still refuses, it tells nothing.
constexpr std::size_t kMostBytes = std::size_t{1} << 17;

// A hierarchy of control groups, as /proc/self/mountinfo has it.
struct Hierarchy {
    bool second;        // version 2 of control groups
    std::string root;   // the group that is seen at `place`
    std::string place;  // a folder
};

// Spaces and such are octal there: \040.
std::string unescaped(std::string_view text) {
    std::string plain;
    const auto octal = [](char c) { return c >= '0' && c <= '7'; };
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size() &&
            std::all_of(text.data() + i + 1, text.data() + i + 4, octal)) {
            plain.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                              text[i + 3] - '0'));
            i += 3;
        } else {
            plain.push_back(text[i]);
        }
    }
    return plain;
}

bool in_list(std::string_view list, std::string_view word) {
    while (!list.empty()) {
        const std::size_t comma = std::min(list.find(','), list.size());
        if (list.substr(0, comma) == word) return true;
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return false;
}

// The hierarchies that limit processors.
std::vector<Hierarchy> find_hierarchies(const std::string& proc) {
    std::vector<Hierarchy> found;
    FileIn mounts(proc + "mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        TextIn words(line);
        std::string word, root, place, type, source, options;
        words >> word >> word >> word >> root >> place;
        while (words >> word && word != "-") {
        }
        if (!(words >> type >> source >> options)) continue;
        if (type == "cgroup2" || (type == "cgroup" && in_list(options, "cpu")))
            found.push_back({type == "cgroup2", unescaped(root), unescaped(place)});
    }
    return found;
}

// The path of this process's group in a hierarchy; "" if it is in none.
std::string own_group(const std::string& proc, bool second) {
    FileIn groups(proc + "cgroup");
    for (std::string line; std::getline(groups, line);) {
        const std::size_t first_colon = line.find(':');
        const std::size_t colon = line.find(':', first_colon + 1);
        if (first_colon == std::string::npos || colon == std::string::npos) continue;
        const std::string_view controllers =
            std::string_view(line).substr(first_colon + 1, colon - first_colon - 1);
        if (second ? line.rfind("0::", 0) == 0 : in_list(controllers, "cpu"))
            return line.substr(colon + 1);
    }
    return "";
}

// The group's folders from its own up to the hierarchy's place. Where the place shows only a part
// of the hierarchy and the group is outside, as in some containers, the place is the container's
// own group.
std::vector<std::string> folders_of(const Hierarchy& hierarchy, const std::string& group) {
    const std::string above = hierarchy.root == "/" ? "" : hierarchy.root;
    std::string inside;
    if (group.compare(0, above.size(), above) == 0 &&
        (group.size() == above.size() || group[above.size()] == '/'))
        inside = group.substr(above.size());
    if ((inside + "/").find("/../") != std::string::npos) inside.clear();
    std::vector<std::string> folders;
    for (; !inside.empty() && inside != "/"; inside.resize(inside.rfind('/'))) {
        if (inside.back() != '/') folders.push_back(hierarchy.place + inside);
    }
    folders.push_back(hierarchy.place);
    return folders;
}

// Processors that a quota of time in each period pays for, rounded up; 0: no quota.
int rounded_up(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return 0;
    return static_cast<int>(std::min<long long>((quota - 1) / period + 1, INT_MAX));
}

int quota_of(const std::string& folder, bool second) {
    long long quota = 0;
    long long period = 0;
    if (second) {
        FileIn(folder + "/cpu.max") >> quota >> period;  // "max 100000" is no number
    } else {
        FileIn(folder + "/cpu.cfs_quota_us") >> quota;  // -1: none
        FileIn(folder + "/cpu.cfs_period_us") >> period;
    }
    return rounded_up(quota, period);
}

}  // namespace

ProcessorSet ProcessorSet::of_this_thread() {
    for (std::size_t bytes = sizeof(cpu_set_t); bytes <= kMostBytes; bytes *= 2) {
        ProcessorSet set(bytes);
        if (sched_getaffinity(0, bytes, set.data()) == 0) return set;
        if (errno != EINVAL) break;  // EINVAL: the machine may have more
    }
    return ProcessorSet(sizeof(cpu_set_t));
}

ProcessorSet::ProcessorSet(const std::vector<int>& processors) : ProcessorSet(sizeof(cpu_set_t)) {
    for (const int processor : processors) {
        if (processor < 0) continue;
        const auto bit = static_cast<std::size_t>(processor);
        while (bit >= CHAR_BIT * bytes()) words_.resize(2 * words_.size());
        CPU_SET_S(bit, bytes(), data());
    }
}

int usable_processors() {
    const int own = std::max(1, ProcessorSet::of_this_thread().count());
    const int paid = processors_of_quota();
    return paid == 0 ? own : std::min(own, paid);
}

int processors_of_quota(const std::string& root) {
    const std::string proc = root + "/proc/self/";
    int least = 0;
    for (const Hierarchy& hierarchy : find_hierarchies(proc)) {
        for (const std::string& folder : folders_of(hierarchy, own_group(proc, hierarchy.second))) {
            const int paid = quota_of(root + folder, hierarchy.second);
            if (paid != 0 && (least == 0 || paid < least)) least = paid;
        }
    }
    return least;
}

}  // namespace libddp
