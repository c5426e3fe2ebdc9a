#include "hooks/builtin.h"

#include <functional>
#include <map>

#include "hooks/plain.h"
#include "hooks/wrappers.h"
#include "util/options.h"

namespace libddp {
namespace {

using GroupPtr = std::shared_ptr<Group>;
using Maker = std::function<HookPtr(OptionReader&, const GroupPtr&)>;

const std::map<std::string, Maker>& makers() {
    static const std::map<std::string, Maker> all{
        {"allreduce",
         [](OptionReader&, const GroupPtr&) { return std::make_shared<AllreduceHook>(); }},
        {"noop", [](OptionReader&, const GroupPtr&) { return std::make_shared<NoopHook>(); }},
        {"powersgd",
         [](OptionReader& options, const GroupPtr&) { return make_powersgd(options, false); }},
        {"batched_powersgd",
         [](OptionReader& options, const GroupPtr&) { return make_powersgd(options, true); }},
        {"quantize", [](OptionReader& options, const GroupPtr&) { return make_quantize(options); }},
        {"quantize_per_tensor",
         [](OptionReader& options, const GroupPtr&) {
             return make_gathered_quantize(options, false);
         }},
        {"quantize_per_channel",
         [](OptionReader& options, const GroupPtr&) {
             return make_gathered_quantize(options, true);
         }},
        {"onebit", [](OptionReader& options, const GroupPtr&) { return make_onebit(options); }},
        {"topk", [](OptionReader& options, const GroupPtr&) { return make_topk(options); }},
        {"chunks", [](OptionReader& options, const GroupPtr&) { return make_chunks(options); }},
        {"post_local_sgd", make_local_sgd},
    };
    return all;
}

// "fp16(NAME)" is NAME in f16. Returns the dtype, or 0, and leaves NAME.
ddp_dtype unwrap(std::string& name) {
    const ddp_dtype dtype = name.starts_with("fp16")   ? DDP_F16
                            : name.starts_with("bf16") ? DDP_BF16
                                                       : 0;
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
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "dtype is ", dtype,
                  "; it must be DDP_F16 or DDP_BF16");
    return std::make_shared<CastHook>(std::move(inner), dtype);
}

HookPtr make_hook(const std::string& name, const std::string& options, const GroupPtr& group) {
    std::string inner = name;
    const ddp_dtype cast = unwrap(inner);
    const auto maker = makers().find(inner);
    if (maker == makers().end()) {
        std::string known = "fp16, bf16, fp16(NAME), bf16(NAME)";
        for (const auto& [other, _] : makers()) known += ", " + other;
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "there is no hook '", name, "'; there are: ", known);
    }
    OptionReader reader(options, str("ddp_use_hook: ", name));
    HookPtr hook = maker->second(reader, group);
    reader.finish();
    return cast ? make_cast(std::move(hook), cast) : hook;
}

}  // namespace libddp
