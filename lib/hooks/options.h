// The options of each built-in hook, from the typed structs of ddp/builtin_hooks.h or from text.
#pragma once

#include <string>

#include "ddp/more_hooks.h"
#include "hooks/hook.h"

namespace libddp {

ddp_powersgd_options powersgd_defaults();
ddp_quantize_options quantize_defaults();
ddp_onebit_options onebit_defaults();
ddp_topk_options topk_defaults();
ddp_local_sgd_options local_sgd_defaults();

// Each throws INVALID_ARGUMENT, naming the option, for a value out of range.
HookPtr make_powersgd(const ddp_powersgd_options& options);
HookPtr make_quantize(const ddp_quantize_options& options);
HookPtr make_onebit(const ddp_onebit_options& options);
HookPtr make_topk(const ddp_topk_options& options);
// subgroup: null for none.
HookPtr make_local_sgd(std::int64_t start_step, std::shared_ptr<Group> subgroup);

// Wraps a hook; dtype: f16 or bf16.
HookPtr make_cast(HookPtr inner, ddp_dtype dtype);

// By name, with options as text. group: the context's.
HookPtr make_hook(const std::string& name, const std::string& options, const std::shared_ptr<Group>& group);

}  // namespace libddp
