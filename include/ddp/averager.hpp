/* averager.hpp: the averaging of models in C++. See ddp.hpp; the semantics are those of averager.h.
 */
#ifndef DDP_AVERAGER_HPP
#define DDP_AVERAGER_HPP

#include <cstdint>
#include <memory>
#include <vector>

#include "averager.h"
#include "builtin_hooks.h"
#include "context.hpp"

namespace ddp {

/* The mean over the group of every parameter's value, in place. */
inline void average_parameters(Context& context) {
    detail::call(ddp_average_parameters, context.get(), static_cast<ddp_group*>(nullptr));
}
inline void average_parameters(Context& context, const Group& group) {
    detail::call(ddp_average_parameters, context.get(), group.get());
}

class Averager : public detail::Handle<ddp_averager, ddp_averager_free> {
public:
    /* Over all ranks. */
    Averager(Context& context, std::int64_t period, std::int64_t warmup_steps = 0) {
        create(context, &period, nullptr, 1, warmup_steps);
    }
    /* Every periods[i] steps over group_sizes[i] consecutive ranks. */
    Averager(Context& context, const std::vector<std::int64_t>& periods,
             const std::vector<std::int32_t>& group_sizes, std::int64_t warmup_steps = 0) {
        if (periods.size() != group_sizes.size())
            throw Error(DDP_ERROR_INVALID_ARGUMENT,
                        "ddp::Averager: there must be as many group_sizes as periods");
        create(context, periods.data(), group_sizes.data(), periods.size(), warmup_steps);
    }

    /* Call it after each step of the optimizer. Returns over how many ranks it averaged; 0 if it
     * did not. */
    std::int32_t step() {
        std::int32_t ranks = 0;
        detail::call(ddp_averager_step, get(), &ranks);
        return ranks;
    }
    std::int64_t steps() const { return ddp_averager_get_step(get()); }
    void set_steps(std::int64_t steps) { detail::call(ddp_averager_set_step, get(), steps); }

    static ddp_outer_options outer_defaults() {
        ddp_outer_options options;
        ddp_outer_options_init(&options);
        return options;
    }
    void set_outer(const ddp_outer_options& options = outer_defaults()) {
        detail::call(ddp_averager_set_outer, get(), &options);
    }
    /* The fragment of each parameter. */
    void set_fragments(const std::vector<std::int32_t>& fragment_of) {
        detail::call(ddp_averager_set_fragments, get(), fragment_of.data(), fragment_of.size());
    }
    /* The parameters become the outer parameters. */
    void go_back() { detail::call(ddp_averager_go_back, get()); }
    std::vector<unsigned char> save_state() {
        void* data = nullptr;
        std::size_t size = 0;
        detail::call(ddp_averager_state_save, get(), &data, &size);
        const std::unique_ptr<void, decltype(&ddp_free)> owner(data, &ddp_free);
        const auto* bytes = static_cast<const unsigned char*>(data);
        return {bytes, bytes + size};
    }
    void load_state(const std::vector<unsigned char>& state) {
        detail::call(ddp_averager_state_load, get(), static_cast<const void*>(state.data()),
                     state.size());
    }

private:
    void create(Context& context, const std::int64_t* periods, const std::int32_t* group_sizes,
                std::size_t count, std::int64_t warmup_steps) {
        ddp_averager* averager = nullptr;
        detail::call(ddp_averager_create, context.get(), periods, group_sizes, count, warmup_steps,
                     &averager);
        handle_.reset(averager);
    }
};

}  // namespace ddp

#endif /* DDP_AVERAGER_HPP */
