// status.h and types.h with values that do not exist.
#include <climits>

#include "capi/bad_input.h"

namespace bad_input_status_test {

TEST(BadStatus, UnknownValuesHaveNames) {
    for (ddp_status status : {1, INT_MAX, DDP_ERROR_NONFINITE - 1, INT_MIN})
        EXPECT_STREQ(ddp_status_name(status), "DDP_ERROR_UNKNOWN");
    for (ddp_status status = DDP_ERROR_NONFINITE; status <= DDP_OK; ++status)
        EXPECT_STRNE(ddp_status_name(status), "DDP_ERROR_UNKNOWN") << status;
}

TEST(BadStatus, NoErrorAnswersAsSuch) {
    EXPECT_EQ(ddp_error_code(nullptr), DDP_OK);
    EXPECT_STREQ(ddp_error_message(nullptr), "");
    EXPECT_EQ(ddp_error_rank(nullptr), -1);
    EXPECT_EQ(ddp_error_param(nullptr), -1);
    EXPECT_EQ(ddp_error_bucket(nullptr), -1);
    EXPECT_EQ(ddp_error_step(nullptr), -1);
    ddp_error_free(nullptr);
}

TEST(BadStatus, CodesThatAreNoErrorsBecomeCallback) {
    for (ddp_status status : {0, 1, DDP_ERROR_NONFINITE - 1, INT_MIN, INT_MAX}) {
        ddp_error* error = ddp_error_create(status, nullptr);
        ASSERT_NE(error, nullptr);
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_CALLBACK) << status;
        EXPECT_STREQ(ddp_error_message(error), "");
        ddp_error_free(error);
    }
}

TEST(BadTypes, UnknownDtypes) {
    for (ddp_dtype dtype : {0, -1, 10, INT_MAX, INT_MIN}) {
        EXPECT_EQ(ddp_dtype_size(dtype), 0u) << dtype;
        EXPECT_STREQ(ddp_dtype_name(dtype), "unknown") << dtype;
    }
}

}  // namespace bad_input_status_test
