// The error of a call that must fail, and the facts in it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "ddp/ddp.hpp"

// The error that a call of ddp.hpp throws.
template <class Call>
ddp::Error error_of(Call call) {
    try {
        call();
    } catch (const ddp::Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error";
    return ddp::Error(DDP_OK, "");
}

// All that a program can act on. A test of behaviour compares these, and not the words of a
// message.
struct Facts {
    ddp_status status = DDP_OK;
    std::int32_t rank = -1, param = -1, bucket = -1;
    std::int64_t step = -1;
    std::string message{};  // shown when the others differ

    bool operator==(const Facts& other) const {
        return status == other.status && rank == other.rank && param == other.param &&
               bucket == other.bucket && step == other.step;
    }
    friend std::ostream& operator<<(std::ostream& out, const Facts& facts) {
        return out << ddp_status_name(facts.status) << ", rank " << facts.rank << ", param "
                   << facts.param << ", bucket " << facts.bucket << ", step " << facts.step << ": "
                   << facts.message;
    }
};

inline Facts facts_of(const ddp::Error& error) {
    return {error.status(), error.rank(), error.param(),
            error.bucket(), error.step(), error.what()};
}

// The facts of the error that the call throws.
template <class Call>
requires requires(Call call) {
    call();
}
Facts facts_of(Call call) {
    return facts_of(error_of(call));
}

// Frees the error.
inline Facts take_facts(ddp_error* error) {
    const Facts facts{ddp_error_code(error),   ddp_error_rank(error), ddp_error_param(error),
                      ddp_error_bucket(error), ddp_error_step(error), ddp_error_message(error)};
    ddp_error_free(error);
    return facts;
}
