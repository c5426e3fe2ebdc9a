// Runs a hook on ranks that are threads, and writes what went in and what came out, for another
// program to compare.
//
//     powersgd_driver FOLDER HOOK OPTIONS DTYPE(f32|f64) REDUCTION(mean|sum) WORLD STEPS
//     SHAPES(20x30,12,...)
//
// FOLDER/rank0 and so on: for each step the gradients of all parameters, and then their results, as
// f64. FOLDER/state0 and so on: the state of the hook after the last step.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "hooks/matrix_model.h"

namespace {

std::vector<Shape> read_shapes(const std::string& text) {
    std::vector<Shape> shapes;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        Shape shape;
        std::istringstream extents(word);
        for (std::string extent; std::getline(extents, extent, 'x');)
            shape.push_back(std::stoll(extent));
        shapes.push_back(shape);
    }
    return shapes;
}

void write(std::ofstream& file, const void* data, std::size_t bytes) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void run_rank(int rank, ddp_group* group, char** arguments) {
    const std::string folder = arguments[1], dtype = arguments[4], reduction = arguments[5];
    auto options = ddp::Context::defaults();
    options.reduction = reduction == "sum" ? DDP_REDUCTION_SUM : DDP_REDUCTION_MEAN;
    MatrixModel m(group, read_shapes(arguments[8]), dtype == "f64" ? DDP_F64 : DDP_F32, true,
                  options);
    m.context.use_hook(arguments[2], arguments[3]);
    m.context.commit();
    std::ofstream file(folder + "/rank" + std::to_string(rank), std::ios::binary);
    for (int step = 0; step < std::atoi(arguments[7]); ++step) {
        const auto gradient = [&](int i) { return some_numbers(m.param(i), rank, step, i); };
        m.step(gradient);
        for (int i = 0; i < m.count(); ++i)
            write(file, gradient(i).data(), gradient(i).size() * sizeof(double));
        for (int i = 0; i < m.count(); ++i)
            write(file, m.numbers(i).data(), m.numbers(i).size() * sizeof(double));
    }
    const auto state = m.context.save_hook_state();
    std::ofstream state_file(folder + "/state" + std::to_string(rank), std::ios::binary);
    write(state_file, state.data(), state.size());
    if (!file || !state_file) throw std::runtime_error("cannot write to " + folder);
}

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (argc != 9) {
        std::fprintf(
            stderr,
            "usage: powersgd_driver FOLDER HOOK OPTIONS DTYPE REDUCTION WORLD STEPS SHAPES\n");
        return 2;
    }
    on_ranks({std::atoi(argv[6])},
             [&](int rank, ddp_group* group) { run_rank(rank, group, argv); });
    return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
