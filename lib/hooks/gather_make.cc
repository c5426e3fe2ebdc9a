// Quantization, 1-bit and top-k: hooks that gather, each with its codec.
#include "hooks/gather.h"
#include "hooks/options.h"
#include "util/error.h"

namespace libddp {
namespace {

GatherHook::Setup setup_of(std::int64_t min_elements, const char* call) {
    if (min_elements < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": min_elements is ", min_elements,
             "; it must be at least 0: parameters with fewer elements are not compressed");
    GatherHook::Setup setup;
    setup.min_elements = min_elements;
    return setup;
}

HookPtr make(GatherHook::Setup setup) {
    return std::make_shared<GatherHook>(std::move(setup));
}

}  // namespace

ddp_quantize_options quantize_defaults() {
    return {sizeof(ddp_quantize_options), 0, 0};
}

HookPtr make_quantize(const ddp_quantize_options& options, const char* call) {
    if (options.block < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": block is ", options.block,
             "; it must be a number of elements, or 0 for all of a parameter");
    GatherHook::Setup setup = setup_of(options.min_elements, call);
    setup.name = options.block == 0 ? "quantize_per_tensor" : "quantize_per_channel";
    setup.options = str("block=", options.block, ",min_elements=", options.min_elements);
    setup.codec = {DDP_CODEC_QUANTIZE, 0, static_cast<std::size_t>(options.block), 0};
    return make(std::move(setup));
}

ddp_onebit_options onebit_defaults() {
    return {sizeof(ddp_onebit_options), 1024, 512};
}

HookPtr make_onebit(const ddp_onebit_options& options, const char* call) {
    GatherHook::Setup setup = setup_of(options.min_elements, call);
    if (options.block < 0 || options.block % 8 != 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": block is ", options.block,
             "; it must be a multiple of 8, or 0 for all of a parameter");
    setup.name = "onebit";
    setup.options = str("block=", options.block, ",min_elements=", options.min_elements);
    setup.feedback = true;
    setup.codec = {DDP_CODEC_ONEBIT, 0, static_cast<std::size_t>(options.block), 0};
    return make(std::move(setup));
}

ddp_topk_options topk_defaults() {
    return {sizeof(ddp_topk_options), 0.01, 1024};
}

HookPtr make_topk(const ddp_topk_options& options, const char* call) {
    if (!(options.ratio > 0 && options.ratio <= 1))
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": ratio is ", options.ratio,
             "; it must be above 0 and at most 1: the share of each parameter's elements that is sent");
    GatherHook::Setup setup = setup_of(options.min_elements, call);
    setup.name = "topk";
    setup.options = str("ratio=", options.ratio, ",min_elements=", options.min_elements);
    setup.feedback = true;
    setup.codec = {DDP_CODEC_TOPK, 0, 0, options.ratio};
    return make(std::move(setup));
}

}  // namespace libddp
