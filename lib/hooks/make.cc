// Hooks by name.
#include <algorithm>
#include <functional>
#include <map>

#include "hooks/options.h"
#include "hooks/plain.h"
#include "hooks/wrappers.h"
#include "util/options.h"

namespace libddp {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// Options on their way from text into a hook.
struct Text {
    OptionReader reader;
    const std::shared_ptr<Group>& group;
};

void set_flag(Text& text, const char* key, std::uint32_t& flags, std::uint32_t flag_of_zero) {
    bool on = !(flags & flag_of_zero);
    text.reader.flag(key, on);
    flags = on ? flags & ~flag_of_zero : flags | flag_of_zero;
}

HookPtr powersgd(Text& text, std::uint32_t flags) {
    ddp_powersgd_options o = powersgd_defaults();
    o.flags |= flags;
    text.reader.integer("rank", o.rank, 1, std::numeric_limits<std::int32_t>::max());
    text.reader.integer("start", o.start_step, 0, kMost);
    text.reader.real("min_rate", o.min_compression_rate);
    text.reader.real("epsilon", o.orthogonalization_epsilon);
    text.reader.integer("seed", o.seed, 0, kMost);
    text.reader.integer("stats_interval", o.stats_interval, 0, kMost);
    set_flag(text, "error_feedback", o.flags, DDP_POWERSGD_NO_ERROR_FEEDBACK);
    set_flag(text, "warm_start", o.flags, DDP_POWERSGD_NO_WARM_START);
    if (const auto way = text.reader.take("orthogonalization")) {
        if (*way == "gram_schmidt")
            o.flags |= DDP_POWERSGD_GRAM_SCHMIDT;
        else if (*way == "qr")
            o.flags |= DDP_POWERSGD_QR;
        else if (*way != "auto")
            fail(DDP_ERROR_INVALID_ARGUMENT, text.reader.name("orthogonalization"), ": '", *way,
                 "' is none of auto, gram_schmidt, qr");
    }
    text.reader.finish();
    return make_powersgd(o);
}

HookPtr quantize(Text& text, bool channels) {
    ddp_quantize_options o = quantize_defaults();
    if (channels) {
        o.block = 512;
        text.reader.integer("block", o.block, 1, kMost);
    }
    text.reader.integer("min_elements", o.min_elements, 0, kMost);
    text.reader.finish();
    return make_quantize(o);
}

HookPtr onebit(Text& text) {
    ddp_onebit_options o = onebit_defaults();
    text.reader.integer("block", o.block, 0, kMost);
    text.reader.integer("min_elements", o.min_elements, 0, kMost);
    text.reader.finish();
    return make_onebit(o);
}

HookPtr topk(Text& text) {
    ddp_topk_options o = topk_defaults();
    text.reader.real("ratio", o.ratio);
    text.reader.integer("min_elements", o.min_elements, 0, kMost);
    text.reader.finish();
    return make_topk(o);
}

// A subgroup of all ranks is the group itself, and one of a single rank is none.
HookPtr local_sgd(Text& text) {
    ddp_local_sgd_options o = local_sgd_defaults();
    std::int32_t size = 1;
    text.reader.integer("start", o.start_step, 0, kMost);
    text.reader.integer("subgroup", size, 1, text.group->world());
    text.reader.finish();
    const std::int32_t world = text.group->world();
    if (world % size != 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, text.reader.name("subgroup"), ": ", size, " does not divide the world size, ",
             world);
    std::shared_ptr<Group> subgroup;
    if (size == world)
        subgroup = text.group;
    else if (size > 1)
        subgroup = text.group->split(text.group->rank() / size, text.group->rank(), {});
    return make_local_sgd(o.start_step, std::move(subgroup));
}

template <class Plain>
HookPtr plain(Text& text) {
    text.reader.finish();
    return std::make_shared<Plain>();
}

using Maker = std::function<HookPtr(Text&)>;

const std::map<std::string, Maker>& makers() {
    static const std::map<std::string, Maker> all{
        {"allreduce", plain<AllreduceHook>},
        {"noop", plain<NoopHook>},
        {"powersgd", [](Text& text) { return powersgd(text, 0); }},
        {"batched_powersgd", [](Text& text) { return powersgd(text, DDP_POWERSGD_BATCHED); }},
        {"quantize_per_tensor", [](Text& text) { return quantize(text, false); }},
        {"quantize_per_channel", [](Text& text) { return quantize(text, true); }},
        {"onebit", onebit},
        {"topk", topk},
        {"post_local_sgd", local_sgd},
    };
    return all;
}

// "fp16(NAME)" is NAME in f16. Returns the dtype, or 0, and leaves NAME.
ddp_dtype unwrap(std::string& name) {
    const ddp_dtype dtype = name.starts_with("fp16") ? DDP_F16 : name.starts_with("bf16") ? DDP_BF16 : 0;
    if (dtype == 0) return 0;
    if (name.size() == 4) {
        name = "allreduce";
        return dtype;
    }
    if (name[4] != '(' || name.back() != ')') return 0;
    name = name.substr(5, name.size() - 6);
    return dtype;
}

}  // namespace

HookPtr make_cast(HookPtr inner, ddp_dtype dtype) {
    if (dtype != DDP_F16 && dtype != DDP_BF16)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "dtype is ", dtype, "; it must be DDP_F16 or DDP_BF16");
    return std::make_shared<CastHook>(std::move(inner), dtype);
}

HookPtr make_hook(const std::string& name, const std::string& options, const std::shared_ptr<Group>& group) {
    std::string inner = name;
    const ddp_dtype cast = unwrap(inner);
    const auto maker = makers().find(inner);
    if (maker == makers().end()) {
        std::string known = "fp16, bf16, fp16(NAME), bf16(NAME)";
        for (const auto& [other, _] : makers()) known += ", " + other;
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "there is no hook '", name, "'; there are: ", known);
    }
    Text text{OptionReader(options, str("ddp_use_hook: ", name)), group};
    HookPtr hook = maker->second(text);
    return cast ? make_cast(std::move(hook), cast) : hook;
}

}  // namespace libddp
