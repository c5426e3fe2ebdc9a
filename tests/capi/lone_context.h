// A context on a group of one rank, for calls that are refused. Whatever was refused, a good step
// must pass afterwards.
#pragma once

#include <initializer_list>

#include "capi/bad_input.h"

class LoneContext : public testing::Test {
protected:
    void SetUp() override {
        ddp_group_options options;
        ddp_group_options_init(&options);
        options.rank = 0;
        options.world_size = 1;
        ASSERT_EQ(ddp_group_create(&options, &group, nullptr), DDP_OK);
        recreate();
    }
    void TearDown() override {
        ddp_context_free(context);
        ddp_group_free(group);
    }

    // A new context instead of the one before.
    void recreate(std::uint32_t flags = 0, ddp_reduction reduction = DDP_REDUCTION_MEAN) {
        ddp_context_free(context);
        context = nullptr;
        ddp_context_options options;
        ddp_context_options_init(&options);
        options.flags = flags;
        options.reduction = reduction;
        ASSERT_EQ(ddp_context_create(group, &options, &context, nullptr), DDP_OK);
    }
    // Four f32, as a view unless there is a gradient.
    ddp_param_desc desc(const char* name, float* grad = nullptr) const {
        ddp_param_desc d;
        ddp_param_desc_init(&d);
        d.name = name;
        d.shape = shape;
        d.ndim = 1;
        d.grad = grad;
        d.data = value_of_all;
        return d;
    }
    void add(const char* name, std::uint32_t flags = 0, std::uint32_t uses = 1) {
        auto d = desc(name);
        d.flags = flags;
        d.uses = uses;
        ddp_param made = -1;
        ASSERT_EQ(ddp_register_param(context, &d, &made, nullptr), DDP_OK);
    }
    void commit(std::initializer_list<const char*> names = {"a", "b"}) {
        for (const char* name : names) add(name);
        ASSERT_EQ(ddp_commit(context, nullptr), DDP_OK);
    }
    // A step in which these parameters get gradients: the mean over one rank leaves them as they
    // are.
    void expect_good_step(std::initializer_list<ddp_param> params = {1, 0},
                          int line = __builtin_LINE()) {
        const testing::ScopedTrace trace("", line, "the step after refused calls");
        expect_accepted(calling(ddp_step_begin, context));
        for (ddp_param param : params) {
            gradient(param)[3] = 5;
            expect_accepted(calling(ddp_grad_ready, context, param));
        }
        expect_accepted(calling(ddp_finalize, context));
        for (ddp_param param : params) EXPECT_EQ(gradient(param)[3], 5);
    }

    std::int32_t param_count() const {
        ddp_stats stats;
        stats.struct_size = sizeof stats;
        EXPECT_EQ(ddp_stats_get(context, &stats, nullptr), DDP_OK);
        return stats.param_count;
    }

    ddp_group* group = nullptr;
    ddp_context* context = nullptr;
    const std::int64_t shape[2] = {4, 1};
    float* value_of_all = nullptr;  // the value of each parameter

private:
    float* gradient(ddp_param param) {
        static float none[4];
        void* view = none;
        EXPECT_EQ(ddp_grad_view(context, param, &view, nullptr), DDP_OK);
        return static_cast<float*>(view);
    }
};
