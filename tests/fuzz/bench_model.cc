// A file of `ddp-bench --model`.
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "bench/models.h"
#include "fuzz/target.h"

namespace fuzz::bench_model {

using namespace bench;

DDP_FUZZ_TARGET(bench_model, input) {
    Model model;
    try {
        std::istringstream in{std::string(input)};
        model = read_model(in);
    } catch (const std::invalid_argument&) {
        return;
    }
    check(element_count(model) >= 0, "a model has a negative number of elements");
    double sum = 0;
    for (const double share : work_shares(model)) {
        check(share >= 0, "a share is negative or no number");
        sum += share;
    }
    check(element_count(model) == 0 || std::fabs(sum - 1) < 1e-6, "shares do not add up to 1");
    std::stringstream text;
    write_model(text, model);
    const Model again = read_model(text);
    check(again.size() == model.size(), "a model changes when it is written and read");
    for (std::size_t i = 0; i < model.size(); ++i)
        check(again[i].name == model[i].name && again[i].shape == model[i].shape &&
                  again[i].uses == model[i].uses,
              "a parameter changes when it is written and read");
}

}  // namespace fuzz::bench_model
