// Runs a function on every rank of a world whose ranks are threads of this process, each with its
// own group.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "ddp/ddp.h"

struct RankOptions {
    RankOptions(int world_ = 2, std::string backend_ = "threads")
        : world(world_), backend(std::move(backend_)) {}

    int world;
    std::string backend;  // threads, threads-plain, threads-single, threads-caller, tcp
    std::string backend_options;
    unsigned flags = 0;
    long timeout_ms = 20'000;
    unsigned round_robin = 0;  // groups that take turns; 0: one
};

// As options.backend and so on say, whose text it borrows. Joins nothing.
ddp_group_options group_options(const RankOptions& options, int rank, const char* uri);
ddp_group_options group_options(RankOptions&& options, int rank, const char* uri) = delete;

// Fails the test if creating a group fails or a rank throws. `body` owns nothing: the group is
// freed after it returned.
void on_ranks(const RankOptions& options,
              const std::function<void(int rank, ddp_group* group)>& body);

// The message of an error, which is freed.
std::string take_message(ddp_error* error);
