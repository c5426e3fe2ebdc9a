// The error that a call of ddp.hpp throws.
#pragma once

#include <gtest/gtest.h>

#include "ddp/ddp.hpp"

// The error of a call that must fail.
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
