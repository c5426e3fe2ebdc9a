#include "support/ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <exception>
#include <filesystem>
#include <thread>
#include <vector>

#include "support/thread_backend.h"

std::string take_message(ddp_error* error) {
    std::string message = ddp_error_message(error);
    ddp_error_free(error);
    return message;
}

ddp_group_options group_options(const RankOptions& options, int rank, const char* uri) {
    register_thread_backend();
    ddp_group_options o;
    ddp_group_options_init(&o);
    o.rank = rank;
    o.world_size = options.world;
    o.init_method = uri;
    o.backend = options.backend.c_str();
    o.backend_options = options.backend_options.c_str();
    o.flags = options.flags;
    o.timeout_ms = options.timeout_ms;
    o.round_robin = options.round_robin;
    return o;
}

void on_ranks(const RankOptions& options,
              const std::function<void(int rank, ddp_group* group)>& body) {
    static std::atomic<int> counter{0};
    auto path = std::filesystem::temp_directory_path() /
                ("ddp-test-" + std::to_string(getpid()) + "-" + std::to_string(counter++));
    const std::string uri = "file://" + path.string();
    std::barrier all_have_joined(options.world);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.world; ++rank)
        threads.emplace_back([&, rank] {
            const ddp_group_options o = group_options(options, rank, uri.c_str());
            ddp_group* group = nullptr;
            ddp_error* error = nullptr;
            if (ddp_group_create(&o, &group, &error) != DDP_OK) {
                ADD_FAILURE() << "rank " << rank << ": " << take_message(error);
                all_have_joined.arrive_and_drop();
                return;
            }
            // A rank that still joins would take what `body` does to the group for a failure of
            // joining.
            all_have_joined.arrive_and_wait();
            try {
                body(rank, group);
            } catch (const std::exception& e) {
                ADD_FAILURE() << "rank " << rank << " threw: " << e.what();
            }
            ddp_group_free(group);
        });
    for (auto& thread : threads) thread.join();
    std::filesystem::remove(path);
}
