// The hooks that come with libddp, by name, with their options as text (ddp/builtin_hooks.h,
// docs/hooks.md).
#pragma once

#include <memory>
#include <string>

#include "hooks/hook.h"

namespace libddp {

class OptionReader;

// group: the context's. Throws INVALID_ARGUMENT for an unknown name or option and a value out of
// range.
HookPtr make_hook(const std::string& name, const std::string& options,
                  const std::shared_ptr<Group>& group);

// Wraps a hook; dtype: f16 or bf16.
HookPtr make_cast(HookPtr inner, ddp_dtype dtype);

// Each reads the options of one hook.
HookPtr make_powersgd(OptionReader& options, bool batched);
HookPtr make_quantize(OptionReader& options);
HookPtr make_gathered_quantize(OptionReader& options, bool in_blocks);
HookPtr make_onebit(OptionReader& options);
HookPtr make_topk(OptionReader& options);
HookPtr make_chunks(OptionReader& options);
HookPtr make_local_sgd(OptionReader& options, const std::shared_ptr<Group>& group);

}  // namespace libddp
