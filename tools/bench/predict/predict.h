// ddp-bench predict: the time of training steps on a network that the user describes.
#pragma once

#include <string>
#include <vector>

#include "options.h"
#include "report.h"

namespace bench {

struct Prediction {
    std::vector<Row> rows;
    std::string text;  // the best bucket size, and where scaling ends; or the advice
};

// Throws std::runtime_error and std::invalid_argument.
Prediction predict(const Options& options);

}  // namespace bench
