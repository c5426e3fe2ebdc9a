// ddp-bench: measures libddp.
#include <algorithm>
#include <exception>
#include <iostream>

#include "benchmarks.h"
#include "handles.h"
#include "launch.h"
#include "models.h"
#include "options.h"

namespace bench {
namespace {

Group join(const Options& options) {
    ddp_group_options join;
    ddp_group_options_init(&join);
    join.backend = options.backend.c_str();
    join.backend_options = options.backend_options.empty() ? nullptr : options.backend_options.c_str();
    join.round_robin = options.groups;
    join.timeout_ms = static_cast<std::int64_t>(1e3 * std::min(options.timeout, 300.0));  // 300 s: libddp's default
    ddp_group* group = nullptr;
    Result result;
    result.check(ddp_group_create(&join, &group, result));
    return Group(group);
}

std::vector<Row> run(ddp_group* group, const Options& options) {
    if (options.command == Command::allreduce) return run_allreduce(group, options);
    if (options.command == Command::replay) return run_replay(group, options);
    return run_grad_ready(group, options);
}

int be_a_rank(const Options& options) {
    const Group group = join(options);
    const std::vector<Row> rows = run(group.get(), options);
    if (ddp_group_rank(group.get()) != 0) return 0;
    if (options.json) print_json(std::cout, rows);
    if (!options.json) print_table(std::cout, rows);
    return std::cout.good() ? 0 : 1;
}

int run_command(const Options& options, char** argv) {
    if (options.command == Command::models) {
        write_model(std::cout, find_model(options.model));
        return std::cout.good() ? 0 : 1;
    }
    if (is_launched()) return be_a_rank(options);
    if (options.command == Command::replay) find_model(options.model);  // its errors once, and not from every rank
    return launch(options.world, options.timeout, argv);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    try {
        return bench::run_command(bench::parse_options(argc, argv), argv);
    } catch (const std::exception& error) {
        std::cerr << "ddp-bench: " << error.what() << '\n';
        return 1;
    }
}
