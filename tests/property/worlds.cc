#include "property/worlds.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace property {
namespace {

void on_threads(int world, const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
}

}  // namespace

World::World(int world, Backend backend, int groups, long timeout_ms)
    : groups_(static_cast<std::size_t>(world)) {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("ddp-property-" + std::to_string(getpid()) + "-" + std::to_string(counter++));
    RankOptions options(world, backend_name(backend));
    options.round_robin = static_cast<unsigned>(groups);
    options.timeout_ms = timeout_ms;
    on_threads(world,
               [&](int rank) { groups_[static_cast<std::size_t>(rank)] = join(options, rank); });
    for (auto* group : groups_)
        if (!group) throw std::runtime_error("a rank could not join its world");
}

World::~World() {
    on_threads(static_cast<int>(groups_.size()),
               [this](int rank) { ddp_group_free(groups_[static_cast<std::size_t>(rank)]); });
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
}

ddp_group* World::join(const RankOptions& options, int rank) const {
    const std::string uri = "file://" + path_;
    const ddp_group_options o =
        group_options(options, rank, options.world > 1 ? uri.c_str() : nullptr);
    ddp_group* group = nullptr;
    return ddp_group_create(&o, &group, nullptr) == DDP_OK ? group : nullptr;
}

std::vector<std::string> World::run(const std::function<void(int rank, ddp_group* group)>& body) {
    std::mutex mutex;
    std::vector<std::string> messages;
    on_threads(static_cast<int>(groups_.size()), [&](int rank) {
        ddp_group* group = groups_[static_cast<std::size_t>(rank)];
        try {
            body(rank, group);
        } catch (const std::exception& e) {
            {
                const std::lock_guard lock(mutex);
                messages.push_back(std::string("rank ") + std::to_string(rank) + ": " + e.what());
            }
            ddp_group_abort(group, "a rank failed in a generated case", nullptr);
        }
    });
    return messages;
}

bool World::healthy() const {
    for (auto* group : groups_)
        if (ddp_group_status(group, nullptr) != DDP_OK) return false;
    return true;
}

World& Worlds::get(int world, Backend backend, int groups) {
    auto& kept = worlds_[{world, backend, groups}];
    if (kept && !kept->healthy()) kept.reset();
    if (!kept) kept = std::make_unique<World>(world, backend, groups, timeout_ms_);
    return *kept;
}

}  // namespace property
