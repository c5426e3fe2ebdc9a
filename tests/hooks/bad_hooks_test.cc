// builtin_hooks.h with arguments that make no sense, and with calls that come at the wrong time.
#include "capi/lone_context.h"

namespace bad_hooks_test {

class BadHooks : public LoneContext {
protected:
    auto use(const char* name, const char* options) {
        return calling(&ddp_use_hook, context, name, options);
    }
};

TEST_F(BadHooks, NullHandles) {
    EXPECT_EQ(ddp_hook_name(nullptr), nullptr);
    ddp_free(nullptr);
    ddp_context* none = nullptr;
    Untouched<void*> data;
    Untouched<size_t> size;
    const auto fn =
        +[](void*, ddp_group*, ddp_bucket*, ddp_error**) -> ddp_status { return DDP_OK; };
    const auto null = [](const char* function, std::function<ddp_status(ddp_error**)> call) {
        return null_argument(function, "context", std::move(call));
    };
    expect_refused({
        null("ddp_use_hook", calling(&ddp_use_hook, none, "noop", "")),
        null("ddp_compress_hook", calling(&ddp_compress_hook, none, DDP_F16)),
        null("ddp_hook_then",
             [&](ddp_error** e) { return ddp_hook_then(nullptr, fn, nullptr, nullptr, 0, e); }),
        null("ddp_hook_state_save",
             [&](ddp_error** e) { return ddp_hook_state_save(nullptr, &data, &size, e); }),
        null("ddp_hook_state_load",
             [&](ddp_error** e) { return ddp_hook_state_load(nullptr, "", 0, 0, e); }),
        null_argument("ddp_use_hook", "name", use(nullptr, "")),
        null_argument(
            "ddp_hook_then", "fn",
            [&](ddp_error** e) { return ddp_hook_then(context, nullptr, nullptr, nullptr, 0, e); }),
        null_argument(
            "ddp_hook_state_save", "data",
            [&](ddp_error** e) { return ddp_hook_state_save(context, nullptr, &size, e); }),
        null_argument(
            "ddp_hook_state_save", "size",
            [&](ddp_error** e) { return ddp_hook_state_save(context, &data, nullptr, e); }),
        null_argument(
            "ddp_hook_state_load", "data",
            [&](ddp_error** e) { return ddp_hook_state_load(context, nullptr, 8, 0, e); }),
    });
}

TEST_F(BadHooks, NamesAndOptions) {
    expect_refused({
        {"no name", kInvalid, {"there is no hook ''", "powersgd"}, use("", nullptr)},
        {"unknown", kInvalid, {"there is no hook 'fp8'", "bf16"}, use("fp8", nullptr)},
        {"unknown inside", kInvalid, {"there is no hook 'fp16(what)'"}, use("fp16(what)", nullptr)},
        {"parenthesis", kInvalid, {"there is no hook 'fp16(topk'"}, use("fp16(topk", nullptr)},
        {"twice", kInvalid, {"there is no hook"}, use("fp16(fp16(topk))", nullptr)},
        {"options of none",
         kInvalid,
         {"noop", "no option 'rank'", "takes none"},
         use("noop", "rank=1")},
        {"unknown option",
         kInvalid,
         {"powersgd", "no option 'ranks'", "min_rate"},
         use("powersgd", "ranks=1")},
        {"no value", kInvalid, {"'rank' is not of the form key=value"}, use("powersgd", "rank")},
        {"given twice", kInvalid, {"'rank' is given twice"}, use("powersgd", "rank=1,rank=2")},
        {"no integer",
         kInvalid,
         {"powersgd: rank", "'x' is not an integer"},
         use("powersgd", "rank=x")},
        {"rank 0", kInvalid, {"powersgd: rank", "0 is not between 1"}, use("powersgd", "rank=0")},
        {"start", kInvalid, {"start", "-1"}, use("powersgd", "start=-1")},
        {"no number", kInvalid, {"epsilon", "not a finite number"}, use("powersgd", "epsilon=inf")},
        {"epsilon", kInvalid, {"epsilon", "-1"}, use("powersgd", "epsilon=-1")},
        {"min_rate",
         kInvalid,
         {"min_rate", "'nan' is not a finite number"},
         use("powersgd", "min_rate=nan")},
        {"min_rate 0", kInvalid, {"min_rate", "-2 is less than 0"}, use("powersgd", "min_rate=-2")},
        {"flag", kInvalid, {"warm_start", "2"}, use("powersgd", "warm_start=2")},
        {"way",
         kInvalid,
         {"orthogonalization", "'svd'", "qr"},
         use("powersgd", "orthogonalization=svd")},
        {"block", kInvalid, {"block", "0"}, use("quantize_per_channel", "block=0")},
        {"type", kInvalid, {"quantize: type", "'fp8'", "e5m2"}, use("quantize", "type=fp8")},
        {"rounding", kInvalid, {"rounding", "'up'", "stochastic"}, use("quantize", "rounding=up")},
        {"small block",
         kInvalid,
         {"block", "31 is not between 32 and 2048"},
         use("quantize", "block=31")},
        {"large block", kInvalid, {"block", "2049"}, use("quantize", "block=2049")},
        {"block of tensor",
         kInvalid,
         {"no option 'block'"},
         use("quantize_per_tensor", "block=512")},
        {"ratio 0", kInvalid, {"ratio", "0"}, use("topk", "ratio=0")},
        {"ratio 2", kInvalid, {"ratio", "2"}, use("topk", "ratio=2")},
        {"chunk 0", kInvalid, {"chunks: chunk", "0"}, use("chunks", "chunk=0")},
        {"share 0", kInvalid, {"chunks: ratio is 0", "above 0"}, use("chunks", "ratio=0")},
        {"share 2", kInvalid, {"chunks: ratio is 2", "at most 1"}, use("chunks", "ratio=2")},
        {"momentum 1", kInvalid, {"momentum is 1", "below 1"}, use("chunks", "momentum=1")},
        {"momentum -1", kInvalid, {"momentum", "-1"}, use("chunks", "momentum=-1")},
        {"warmup", kInvalid, {"chunks: warmup", "-1"}, use("chunks", "warmup=-1")},
        {"min_elements", kInvalid, {"min_elements", "-3"}, use("onebit", "min_elements=-3")},
        {"block of 1 bit", kInvalid, {"block is 12", "multiple of 8"}, use("onebit", "block=12")},
        {"interval", kInvalid, {"stats_interval", "-1"}, use("powersgd", "stats_interval=-1")},
        {"seed", kInvalid, {"seed", "-1"}, use("powersgd", "seed=-1")},
        {"ratio", kInvalid, {"ratio", "'nan' is not a finite number"}, use("topk", "ratio=nan")},
        {"no elements",
         kInvalid,
         {"min_elements", "-1"},
         use("quantize_per_tensor", "min_elements=-1")},
        {"local start",
         kInvalid,
         {"post_local_sgd: start", "-5"},
         use("post_local_sgd", "start=-5")},
        {"subgroup",
         kInvalid,
         {"subgroup", "2 is not between 1 and 1"},
         use("post_local_sgd", "subgroup=2")},
        {"dtype",
         kInvalid,
         {"ddp_compress_hook", "dtype is 3"},
         calling(&ddp_compress_hook, context, DDP_F32)},
    });
    EXPECT_STREQ(ddp_hook_name(context), "allreduce") << "the hook installed before stays";
    commit();
    expect_good_step();
}

TEST_F(BadHooks, AtTheWrongTime) {
    Untouched<void*> data;
    Untouched<size_t> size;
    expect_refused({
        {"save",
         kState,
         {"ddp_hook_state_save", "ddp_commit"},
         [&](ddp_error** e) { return ddp_hook_state_save(context, &data, &size, e); }},
        {"load",
         kState,
         {"ddp_hook_state_load", "ddp_commit"},
         [&](ddp_error** e) { return ddp_hook_state_load(context, "x", 1, 0, e); }},
    });
    commit();
    expect_accepted(calling(&ddp_grad_ready, context, ddp_param{0}));
    expect_refused({
        {"use", kState, {"ddp_use_hook", "under way"}, use("noop", nullptr)},
        {"compress",
         kState,
         {"ddp_compress_hook", "under way"},
         calling(&ddp_compress_hook, context, DDP_F16)},
        {"save",
         kState,
         {"under way"},
         [&](ddp_error** e) { return ddp_hook_state_save(context, &data, &size, e); }},
        {"load",
         kState,
         {"under way"},
         [&](ddp_error** e) { return ddp_hook_state_load(context, "x", 1, 0, e); }},
    });
    EXPECT_STREQ(ddp_hook_name(context), "allreduce");
    expect_accepted(calling(&ddp_grad_ready, context, ddp_param{1}));
    expect_accepted(calling(&ddp_finalize, context));
    expect_good_step();
}

}  // namespace bad_hooks_test
