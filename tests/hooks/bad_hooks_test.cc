// builtin_hooks.h with arguments that make no sense, and with calls that come at the wrong time.
#include <limits>

#include "capi/lone_context.h"

namespace bad_hooks_test {

class BadHooks : public LoneContext {
protected:
    auto use(const char* name, const char* options) { return calling(&ddp_use_hook, context, name, options); }
    // options that are the defaults but for a change.
    template <class Options, class Change>
    static Options changed(void (*init)(Options*), Change change) {
        Options options;
        init(&options);
        change(options);
        return options;
    }
    template <class Options>
    auto with(ddp_status (*function)(ddp_context*, const Options*, ddp_error**), const Options& options) {
        return [this, function, options](ddp_error** e) { return function(context, &options, e); };
    }
};

TEST_F(BadHooks, NullHandles) {
    EXPECT_EQ(ddp_hook_name(nullptr), nullptr);
    ddp_bytes_free(nullptr);
    ddp_powersgd_options_init(nullptr);
    ddp_quantize_options_init(nullptr);
    ddp_onebit_options_init(nullptr);
    ddp_topk_options_init(nullptr);
    ddp_local_sgd_options_init(nullptr);
    ddp_context* none = nullptr;
    Untouched<void*> data;
    Untouched<size_t> size;
    const auto fn = +[](void*, ddp_group*, ddp_bucket*, ddp_error**) -> ddp_status { return DDP_OK; };
    const auto null = [](const char* function, std::function<ddp_status(ddp_error**)> call) {
        return null_argument(function, "context", std::move(call));
    };
    expect_refused({
        null("ddp_use_hook", calling(&ddp_use_hook, none, "noop", "")),
        null("ddp_use_powersgd", [](ddp_error** e) { return ddp_use_powersgd(nullptr, nullptr, e); }),
        null("ddp_use_quantize", [](ddp_error** e) { return ddp_use_quantize(nullptr, nullptr, e); }),
        null("ddp_use_onebit", [](ddp_error** e) { return ddp_use_onebit(nullptr, nullptr, e); }),
        null("ddp_use_topk", [](ddp_error** e) { return ddp_use_topk(nullptr, nullptr, e); }),
        null("ddp_use_local_sgd", [](ddp_error** e) { return ddp_use_local_sgd(nullptr, nullptr, e); }),
        null("ddp_compress_hook", calling(&ddp_compress_hook, none, DDP_F16)),
        null("ddp_hook_then", [&](ddp_error** e) { return ddp_hook_then(nullptr, fn, nullptr, nullptr, 0, e); }),
        null("ddp_hook_state_save", [&](ddp_error** e) { return ddp_hook_state_save(nullptr, &data, &size, e); }),
        null("ddp_hook_state_load", [&](ddp_error** e) { return ddp_hook_state_load(nullptr, "", 0, 0, e); }),
        null_argument("ddp_use_hook", "name", use(nullptr, "")),
        null_argument("ddp_hook_then", "fn",
                      [&](ddp_error** e) { return ddp_hook_then(context, nullptr, nullptr, nullptr, 0, e); }),
        null_argument("ddp_hook_state_save", "data",
                      [&](ddp_error** e) { return ddp_hook_state_save(context, nullptr, &size, e); }),
        null_argument("ddp_hook_state_save", "size",
                      [&](ddp_error** e) { return ddp_hook_state_save(context, &data, nullptr, e); }),
        null_argument("ddp_hook_state_load", "data",
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
        {"options of none", kInvalid, {"noop", "no option 'rank'", "takes none"}, use("noop", "rank=1")},
        {"unknown option", kInvalid, {"powersgd", "no option 'ranks'", "min_rate"}, use("powersgd", "ranks=1")},
        {"no value", kInvalid, {"'rank' is not of the form key=value"}, use("powersgd", "rank")},
        {"given twice", kInvalid, {"'rank' is given twice"}, use("powersgd", "rank=1,rank=2")},
        {"no integer", kInvalid, {"powersgd: rank", "'x' is not an integer"}, use("powersgd", "rank=x")},
        {"rank 0", kInvalid, {"powersgd: rank", "0 is not between 1"}, use("powersgd", "rank=0")},
        {"start", kInvalid, {"start", "-1"}, use("powersgd", "start=-1")},
        {"no number", kInvalid, {"epsilon", "not a finite number"}, use("powersgd", "epsilon=inf")},
        {"epsilon", kInvalid, {"epsilon", "-1"}, use("powersgd", "epsilon=-1")},
        {"min_rate", kInvalid, {"min", "rate", "nan"}, use("powersgd", "min_rate=nan")},
        {"min_rate 0", kInvalid, {"min", "rate", "-2"}, use("powersgd", "min_rate=-2")},
        {"flag", kInvalid, {"warm_start", "2"}, use("powersgd", "warm_start=2")},
        {"way", kInvalid, {"orthogonalization", "'svd'", "qr"}, use("powersgd", "orthogonalization=svd")},
        {"block", kInvalid, {"block", "0"}, use("quantize_per_channel", "block=0")},
        {"block of tensor", kInvalid, {"no option 'block'"}, use("quantize_per_tensor", "block=512")},
        {"ratio 0", kInvalid, {"ratio", "0"}, use("topk", "ratio=0")},
        {"ratio 2", kInvalid, {"ratio", "2"}, use("topk", "ratio=2")},
        {"min_elements", kInvalid, {"min_elements", "-3"}, use("onebit", "min_elements=-3")},
        {"block of 1 bit", kInvalid, {"block is 12", "multiple of 8"}, use("onebit", "block=12")},
        {"subgroup", kInvalid, {"subgroup", "2 is not between 1 and 1"}, use("post_local_sgd", "subgroup=2")},
        {"dtype", kInvalid, {"ddp_compress_hook", "dtype is 3"}, calling(&ddp_compress_hook, context, DDP_F32)},
    });
    EXPECT_STREQ(ddp_hook_name(context), "allreduce") << "the hook installed before stays";
    commit();
    expect_good_step();
}

TEST_F(BadHooks, Structs) {
    using P = ddp_powersgd_options;
    using Q = ddp_quantize_options;
    const auto powersgd = [&](auto change) {
        return with(&ddp_use_powersgd, changed(&ddp_powersgd_options_init, change));
    };
    const auto quantize = [&](auto change) {
        return with(&ddp_use_quantize, changed(&ddp_quantize_options_init, change));
    };
    const auto onebit = changed(&ddp_onebit_options_init, [](auto& o) { o.min_elements = -1; });
    const auto topk =
        changed(&ddp_topk_options_init, [](auto& o) { o.ratio = std::numeric_limits<double>::quiet_NaN(); });
    const auto local = changed(&ddp_local_sgd_options_init, [](auto& o) { o.start_step = -5; });
    expect_refused({
        {"rank", kInvalid, {"ddp_use_powersgd", "rank", "0"}, powersgd([](P& o) { o.rank = 0; })},
        {"start", kInvalid, {"start_step", "-1"}, powersgd([](P& o) { o.start_step = -1; })},
        {"rate", kInvalid, {"min_compression_rate"}, powersgd([](P& o) { o.min_compression_rate = -1; })},
        {"epsilon", kInvalid, {"epsilon"}, powersgd([](P& o) { o.orthogonalization_epsilon = -1e-8; })},
        {"interval", kInvalid, {"stats_interval"}, powersgd([](P& o) { o.stats_interval = -1; })},
        {"both ways", kInvalid, {"GRAM_SCHMIDT", "QR"}, powersgd([](P& o) {
             o.flags = DDP_POWERSGD_GRAM_SCHMIDT | DDP_POWERSGD_QR;
         })},
        {"flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x40000000"}, powersgd([](P& o) { o.flags = 1u << 30; })},
        {"block", kInvalid, {"ddp_use_quantize", "block", "-1"}, quantize([](Q& o) { o.block = -1; })},
        {"min_elements", kInvalid, {"min_elements", "-1"}, quantize([](Q& o) { o.min_elements = -1; })},
        {"onebit", kInvalid, {"ddp_use_onebit", "min_elements", "-1"}, with(&ddp_use_onebit, onebit)},
        {"topk", kInvalid, {"ddp_use_topk", "ratio"}, with(&ddp_use_topk, topk)},
        {"local", kInvalid, {"ddp_use_local_sgd", "start_step", "-5"}, with(&ddp_use_local_sgd, local)},
    });
    const auto good = changed(&ddp_powersgd_options_init, [](P&) {});
    check_struct_size(good, "options",
                      [&](const P* options, ddp_error** e) { return ddp_use_powersgd(context, options, e); });
    EXPECT_STREQ(ddp_hook_name(context), "powersgd");
    expect_accepted([&](ddp_error** e) { return ddp_use_topk(context, nullptr, e); });
    EXPECT_STREQ(ddp_hook_name(context), "topk");
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
        {"typed",
         kState,
         {"ddp_use_topk", "under way"},
         [&](ddp_error** e) { return ddp_use_topk(context, nullptr, e); }},
        {"compress", kState, {"ddp_compress_hook", "under way"}, calling(&ddp_compress_hook, context, DDP_F16)},
        {"save", kState, {"under way"}, [&](ddp_error** e) { return ddp_hook_state_save(context, &data, &size, e); }},
        {"load", kState, {"under way"}, [&](ddp_error** e) { return ddp_hook_state_load(context, "x", 1, 0, e); }},
    });
    EXPECT_STREQ(ddp_hook_name(context), "allreduce");
    expect_accepted(calling(&ddp_grad_ready, context, ddp_param{1}));
    expect_accepted(calling(&ddp_finalize, context));
    expect_good_step();
}

}  // namespace bad_hooks_test
