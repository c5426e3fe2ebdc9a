// The parameters that targets of lib/core know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/param_table.h"

namespace fuzz {

// Parameters of every type, with names that JSON has to escape.
inline const libddp::ParamTable& model() {
    static const libddp::ParamTable table = [] {
        libddp::ParamTable made;
        const auto add = [&](const char* name, std::vector<std::int64_t> shape, ddp_dtype dtype,
                             auto change) {
            libddp::Param param;
            param.name = name;
            param.shape = std::move(shape);
            param.dtype = dtype;
            change(param);
            made.add_param(std::move(param));
        };
        const auto as_it_is = [](libddp::Param&) {};
        add("a", {4}, DDP_F32, as_it_is);
        add("b", {3, 5}, DDP_F32, as_it_is);
        add("c.weight", {8, 2}, DDP_F64, as_it_is);
        add("d\"\\\n", {}, DDP_F16, as_it_is);
        add("e", {2}, DDP_I64, [](libddp::Param& p) { p.delayed = true; });
        add("f", {6, 2}, DDP_F32, [](libddp::Param& p) { p.sparse = true; });
        add("g", {3, 2}, DDP_F32, [](libddp::Param& p) { p.factored = true; });
        add("h", {7}, DDP_F32, [](libddp::Param& p) { p.ignored = true; });
        return made;
    }();
    return table;
}

}  // namespace fuzz
