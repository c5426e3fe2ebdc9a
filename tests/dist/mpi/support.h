// Shared by the programs of these tests. Each of their ranks is a process that mpirun has started.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "ddp/ddp.hpp"

inline int number_from(const char* variable, int otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : otherwise;
}
inline int world() {
    static const int size = number_from("OMPI_COMM_WORLD_SIZE", 1);
    return size;
}
inline int my_rank() {
    static const int rank = number_from("OMPI_COMM_WORLD_RANK", 0);
    return rank;
}

// The group of all processes.
inline ddp::Group join(const std::string& backend_options = "", std::uint32_t flags = 0,
                       const std::string& name = "world") {
    auto options = ddp::Group::defaults();
    options.backend = "mpi";
    options.backend_options = backend_options.c_str();
    options.flags = flags;
    options.group_name = name.c_str();
    options.timeout_ms = 20'000;
    return ddp::Group(options);
}
