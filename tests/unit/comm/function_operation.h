// Functions as operations of a queue.
#pragma once

#include <memory>
#include <utility>

#include "comm/executor.h"

namespace libddp {

template <class Function>
WorkPtr submit_function(Executor& executor, Function function) {
    class Called final : public Operation {
    public:
        explicit Called(Function f) : function_(std::move(f)) {}
        ErrorInfo run() override { return function_(); }

    private:
        Function function_;
    };
    return executor.submit(std::make_unique<Called>(std::move(function)));
}

}  // namespace libddp
