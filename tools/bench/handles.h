// libddp's handles with destructors, and its errors as exceptions.
#pragma once

#include <ddp/ddp.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace bench {

struct Free {
    void operator()(ddp_group* group) const { ddp_group_free(group); }
    void operator()(ddp_context* context) const { ddp_context_free(context); }
    void operator()(ddp_store* store) const { ddp_store_free(store); }
    void operator()(ddp_work* work) const { ddp_work_free(work); }
};

using Group = std::unique_ptr<ddp_group, Free>;
using Context = std::unique_ptr<ddp_context, Free>;
using Store = std::unique_ptr<ddp_store, Free>;
using Work = std::unique_ptr<ddp_work, Free>;

// The result of one call: `Result result; result.check(ddp_commit(context, result));`
class Result {
public:
    Result() = default;
    Result(const Result&) = delete;
    Result& operator=(const Result&) = delete;
    ~Result() { ddp_error_free(error_); }

    operator ddp_error**() { return &error_; }

    void check(ddp_status status) const {
        if (status == DDP_OK) return;
        throw std::runtime_error(std::string(ddp_status_name(status)) + ": " +
                                 ddp_error_message(error_));
    }

private:
    ddp_error* error_ = nullptr;
};

}  // namespace bench
