#include "property/worlds.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "support/ranks.h"
#include "support/thread_backend.h"

namespace property {
namespace {

void on_threads(int world, const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
}

}  // namespace

World::World(int world, Backend backend, long timeout_ms) : groups_(static_cast<std::size_t>(world)) {
    register_thread_backend();
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("ddp-property-" + std::to_string(getpid()) + "-" + std::to_string(counter++));
    on_threads(world,
               [&](int rank) { groups_[static_cast<std::size_t>(rank)] = join(rank, world, backend, timeout_ms); });
    for (auto* group : groups_)
        if (!group) throw std::runtime_error("a rank could not join its world");
}

World::~World() {
    on_threads(static_cast<int>(groups_.size()),
               [this](int rank) { ddp_group_free(groups_[static_cast<std::size_t>(rank)]); });
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
}

ddp_group* World::join(int rank, int world, Backend backend, long timeout_ms) const {
    const std::string uri = "file://" + path_;
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.rank = rank;
    options.world_size = world;
    options.init_method = world > 1 ? uri.c_str() : nullptr;
    options.backend = backend_name(backend);
    options.timeout_ms = timeout_ms;
    ddp_group* group = nullptr;
    return ddp_group_create(&options, &group, nullptr) == DDP_OK ? group : nullptr;
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

World& Worlds::get(int world, Backend backend) {
    auto& kept = worlds_[{world, backend}];
    if (kept && !kept->healthy()) kept.reset();
    if (!kept) kept = std::make_unique<World>(world, backend, timeout_ms_);
    return *kept;
}

}  // namespace property
