// Groups of this process beside each other. The state of a rank in one of them explains what the
// ranks of another one see.
#pragma once

#include <string>

#include "util/error.h"

namespace libddp {

// A group that this process has joined and not freed. Every function is called with a lock that all
// groups share.
class OneOfGroups {
public:
    // Groups of one name, such as the links of a round robin group, say nothing about each other.
    virtual const std::string& group_name() const = 0;
    // The same on every rank of the group, and of no other group.
    virtual const std::string& group_keys() const = 0;
    // The operation that this rank is in: "allreduce of 4 f32 (sum)"; empty: none.
    virtual std::string under_way() const = 0;
    // Another group of this process has broken while this one had not. story: "CAUSE; that broke
    // group 'a'".
    virtual void other_broke(const std::string& story) = 0;

protected:
    ~OneOfGroups() = default;
};

// Registers a group while this object lives.
class AmongGroups {
public:
    explicit AmongGroups(OneOfGroups& group);
    ~AmongGroups();
    AmongGroups(const AmongGroups&) = delete;
    AmongGroups& operator=(const AmongGroups&) = delete;

    // The operation of this rank in other groups: "allreduce of 4 f32 (sum) in group 'b'". Empty:
    // there is none, or it is not known because several ranks are threads of this process.
    std::string under_way_elsewhere() const;
    // Tells the others that this group has broken. Called without locks of a group.
    void tell_others(const ErrorInfo& verdict) const;

private:
    OneOfGroups& group_;
};

}  // namespace libddp
