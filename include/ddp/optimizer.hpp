/* optimizer.hpp: optimizers in C++. See ddp.hpp; the semantics are those of optimizer.h. */
#ifndef DDP_OPTIMIZER_HPP
#define DDP_OPTIMIZER_HPP

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "context.hpp"
#include "optimizer.h"

namespace ddp {

class Optimizer : public detail::Handle<ddp_optimizer, ddp_optimizer_free> {
public:
    Optimizer(Context& context, const std::string& name, const std::string& options = "") {
        ddp_optimizer* optimizer = nullptr;
        detail::call(ddp_optimizer_create, context.get(), name.c_str(), options.c_str(),
                     &optimizer);
        handle_.reset(optimizer);
    }

    void set(const std::string& key, double value) { set(-1, key, value); }
    void set(ddp_param param, const std::string& key, double value) {
        detail::call(ddp_optimizer_set, get(), param, key.c_str(), value);
    }
    void step(double scale = 1) { detail::call(ddp_optimizer_step, get(), scale); }
    void in_step(double scale = 1) { detail::call(ddp_optimizer_in_step, get(), scale); }

    std::vector<ddp_optimizer_state> states() {
        std::vector<ddp_optimizer_state> all(
            static_cast<std::size_t>(ddp_optimizer_state_count(get())));
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i].struct_size = sizeof all[i];
            detail::call(ddp_optimizer_state_get, get(), static_cast<std::int32_t>(i), &all[i]);
        }
        return all;
    }

    /* Names this rank's state for the next save_shards or load_shards of its context. */
    void add_shard_arrays(Context& context) {
        std::vector<ddp_param> divided;
        for (const ddp_piece& piece : context.pieces())
            if (piece.replicated == 0) divided.push_back(piece.param);
        for (const ddp_optimizer_state& s : states()) {
            if (s.device.kind != DDP_DEVICE_CPU)
                throw Error(DDP_ERROR_UNSUPPORTED,
                            std::string(s.name) + " of parameter " + std::to_string(s.param) +
                                " is on a device; save a copy on the CPU (ddp_shard_array)");
            const bool replicated =
                std::string("step") == s.name ||
                std::find(divided.begin(), divided.end(), s.param) == divided.end();
            detail::call(ddp_shard_array, context.get(), s.name, s.param, s.first, s.count, s.dtype,
                         s.data, std::int32_t{replicated});
        }
    }
};

}  // namespace ddp

#endif /* DDP_OPTIMIZER_HPP */
