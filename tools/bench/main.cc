// ddp-bench: measures libddp.
#include <exception>
#include <iostream>

#include "benchmarks.h"
#include "groups.h"
#include "handles.h"
#include "launch.h"
#include "models.h"
#include "options.h"
#include "peers.h"
#include "predict/predict.h"
#include "util/text.h"
#include "write_text.h"

namespace bench {
namespace {

std::vector<Row> run(ddp_group* group, const Options& options) {
    if (options.command == Command::allreduce) return run_allreduce(group, options);
    if (options.command == Command::replay) return run_replay(group, options);
    return run_grad_ready(group, options);
}

int print(const std::vector<Row>& rows, const Options& options) {
    if (!options.csv.empty()) write_csv(options.csv, rows);
    libddp::TextOut text;
    if (options.json) print_json(text, rows);
    if (!options.json) print_table(text, rows);
    libddp::write_output(text.str());
    return 0;
}

int be_a_rank(const Options& options) {
    const Holding before = Holding::now();
    const Group group = join(options.backends.front(), options, "world");
    const std::vector<Row> rows = options.command == Command::join
                                      ? run_join(group.get(), options, before)
                                      : run(group.get(), options);
    return ddp_group_rank(group.get()) == 0 ? print(rows, options) : 0;
}

int run_command(const Options& options, int argc, char** argv) {
    if (options.command == Command::peers) run_peers(argc, argv);
    if (options.command == Command::transfer) return print(run_transfer(options), options);
    if (options.command == Command::predict) {
        const Prediction prediction = predict(options);
        const int status = print(prediction.rows, options);
        if (!options.json && !prediction.text.empty()) libddp::write_output("\n" + prediction.text);
        return status;
    }
    if (options.command == Command::models) {
        libddp::TextOut text;
        write_model(text, find_model(options.model));
        libddp::write_output(text.str());
        return 0;
    }
    if (is_launched()) return be_a_rank(options);
    // its errors once, and not from every rank
    if (options.command == Command::replay) find_model(options.model);
    return launch(options.world, options.timeout, argv);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    try {
        return bench::run_command(bench::parse_options(argc, argv), argc, argv);
    } catch (const std::exception& error) {
        std::cerr << "ddp-bench: " << error.what() << '\n';
        return 1;
    }
}
