/* elastic.hpp: jobs whose ranks come and go, in C++. See ddp.hpp; the semantics are those of
 * elastic.h. */
#ifndef DDP_ELASTIC_HPP
#define DDP_ELASTIC_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include "averager.hpp"
#include "context.hpp"
#include "elastic.h"

namespace ddp {

/* Contexts are declared after it, so that they go before it. */
class Elastic : public detail::Handle<ddp_elastic, ddp_elastic_free> {
public:
    using Handle::Handle;

    /* With the store that the environment names. */
    Elastic() : Elastic(defaults()) {}
    explicit Elastic(const ddp_elastic_options& options) {
        ddp_elastic* elastic = nullptr;
        detail::call(ddp_elastic_create, &options, &elastic);
        handle_.reset(elastic);
    }
    static ddp_elastic_options defaults() {
        ddp_elastic_options options;
        ddp_elastic_options_init(&options);
        return options;
    }

    /* Borrowed: it is for ddp::Context and for C functions, until begin() says `changed`. */
    ddp_group* group() const { return ddp_elastic_group(get()); }
    void add_context(Context& context) {
        detail::call(ddp_elastic_add_context, get(), context.get());
    }
    void add_averager(Averager& averager) {
        detail::call(ddp_elastic_add_averager, get(), averager.get());
    }
    void add_state(const std::string& name, void* memory, std::size_t bytes) {
        detail::call(ddp_elastic_add_state, get(), name.c_str(), memory, bytes);
    }
    void set_step(std::int64_t step) { detail::call(ddp_elastic_set_step, get(), step); }

    ddp_elastic_step begin() {
        ddp_elastic_step step{};
        step.struct_size = sizeof step;
        detail::call(ddp_elastic_begin, get(), &step);
        return step;
    }
    void commit() { detail::call(ddp_elastic_commit, get()); }
    void confirm_member() { detail::call(ddp_elastic_confirm_member, get()); }
    /* Shards; arrays are named by Context::add_shard_array. */
    void keep_shards(Context& context, std::int64_t step, ddp_keep where = DDP_KEEP_AT_NEIGHBOUR) {
        detail::call(ddp_elastic_keep_shards, get(), context.get(), step, where);
    }
    bool recall_shards(Context& context) {
        std::int32_t found = 0;
        detail::call(ddp_elastic_recall_shards, get(), context.get(), &found);
        return found != 0;
    }
    void announce_leave() { detail::call(ddp_elastic_announce_leave, get()); }
    void leave() { detail::call(ddp_elastic_leave, get()); }
};

/* The samples of a rank, of 0 to count - 1: from begin up to end, which is not included. */
struct Shard {
    std::int64_t begin = 0;
    std::int64_t end = 0;
};

inline Shard shard_range(std::int64_t count, std::int32_t rank, std::int32_t world_size) {
    Shard shard;
    detail::call(ddp_shard_range, count, rank, world_size, &shard.begin, &shard.end);
    return shard;
}

}  // namespace ddp

#endif /* DDP_ELASTIC_HPP */
