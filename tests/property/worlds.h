// Worlds whose ranks are threads of this process, kept from case to case: joining a group costs
// more than a case.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "property/case.h"
#include "support/ranks.h"

namespace property {

// One group a rank.
class World {
public:
    // Throws std::runtime_error if a rank cannot join.
    World(int world, Backend backend, int groups, long timeout_ms);
    ~World();
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    // Runs body(rank, group) on a thread for each rank. A rank that throws breaks the group, so
    // that the others return. The messages of the ranks that did, the first to fail first.
    std::vector<std::string> run(const std::function<void(int rank, ddp_group* group)>& body);
    bool healthy() const;

private:
    ddp_group* join(const RankOptions& options, int rank) const;

    std::string path_;  // of the store
    std::vector<ddp_group*> groups_;
};

class Worlds {
public:
    // A healthy one.
    World& get(int world, Backend backend, int groups);
    // For worlds made from now on: while a failure is made smaller, every attempt may hang.
    void set_timeout(long timeout_ms) { timeout_ms_ = timeout_ms; }

private:
    long timeout_ms_ = 20'000;
    std::map<std::tuple<int, Backend, int>, std::unique_ptr<World>> worlds_;
};

}  // namespace property
