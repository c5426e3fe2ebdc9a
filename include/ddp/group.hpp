/* group.hpp: groups and works in C++. See ddp.hpp. */
#ifndef DDP_GROUP_HPP
#define DDP_GROUP_HPP

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace ddp {

/* An operation under way. The destructor lets go of it and does not wait. */
class Work : public detail::Handle<ddp_work, ddp_work_free> {
public:
    using Handle::Handle;

    /* timeout_ms 0: as long as the group allows. */
    void wait(std::int64_t timeout_ms = 0) { detail::call(ddp_work_wait, get(), timeout_ms); }
    bool test() {
        std::int32_t done = 0;
        detail::call(ddp_work_test, get(), &done);
        return done != 0;
    }
    /* fn() runs when this work is done, and may return a Work to wait for next (or an empty one).
     */
    Work then(std::function<Work()> fn, std::uint32_t flags = 0) {
        auto state = std::make_unique<std::function<Work()>>(std::move(fn));
        ddp_work* out = nullptr;
        detail::call(ddp_work_then, get(), &run, static_cast<void*>(state.get()), &destroy, flags,
                     &out);
        state.release();
        return Work(out);
    }

private:
    static ddp_status run(void* state, ddp_work** next, ddp_error** error) {
        return detail::guarded(error, [&] {
            if (Work work = (*static_cast<std::function<Work()>*>(state))()) *next = work.release();
        });
    }
    static void destroy(void* state) { delete static_cast<std::function<Work()>*>(state); }
};

class Group : public detail::Handle<ddp_group, ddp_group_free> {
public:
    using Handle::Handle;

    /* Joins the group that the environment describes. */
    Group() : Group(defaults()) {}
    explicit Group(const ddp_group_options& options) {
        ddp_group* group = nullptr;
        detail::call(ddp_group_create, &options, &group);
        handle_.reset(group);
    }
    /* The same, or a group of one where no launcher started this process. */
    static Group or_alone() {
        ddp_group_options options = defaults();
        options.flags = DDP_GROUP_OR_ALONE;
        return Group(options);
    }
    static ddp_group_options defaults() {
        ddp_group_options options;
        ddp_group_options_init(&options);
        return options;
    }

    std::int32_t rank() const { return ddp_group_rank(get()); }
    std::int32_t world_size() const { return ddp_group_world_size(get()); }

    /* In place. T is a type with a ddp::dtype_of. Keep the memory until the Work is done. */
    template <class T>
    Work allreduce(T* data, std::size_t count, ddp_reduce_op op = DDP_SUM) {
        ddp_work* work = nullptr;
        detail::call(ddp_allreduce, get(), static_cast<const void*>(nullptr),
                     static_cast<void*>(data), count, dtype_of<T>::value, op, &work);
        return Work(work);
    }
    template <class T>
    Work broadcast(T* data, std::size_t count, std::int32_t root = 0) {
        ddp_work* work = nullptr;
        detail::call(ddp_broadcast, get(), static_cast<void*>(data), count, dtype_of<T>::value,
                     root, &work);
        return Work(work);
    }
    /* recv[rank * count .. (rank + 1) * count) = that rank's send[0 .. count). */
    template <class T>
    Work allgather(const T* send, T* recv, std::size_t count) {
        ddp_work* work = nullptr;
        detail::call(ddp_allgather, get(), static_cast<const void*>(send), static_cast<void*>(recv),
                     count, dtype_of<T>::value, &work);
        return Work(work);
    }
    /* recv[0 .. count) = op over every rank's send[rank * count .. (rank + 1) * count), where rank
     * is this rank. */
    template <class T>
    Work reduce_scatter(const T* send, T* recv, std::size_t count, ddp_reduce_op op = DDP_SUM) {
        ddp_work* work = nullptr;
        detail::call(ddp_reduce_scatter, get(), static_cast<const void*>(send),
                     static_cast<void*>(recv), count, dtype_of<T>::value, op, &work);
        return Work(work);
    }
    void barrier() { detail::call(ddp_barrier, get(), static_cast<ddp_work**>(nullptr)); }
    Group split(std::int32_t color, std::int32_t key = 0) {
        ddp_group* out = nullptr;
        detail::call(ddp_group_split, get(), color, key, &out);
        return Group(out);
    }
#ifdef DDP_EXPERIMENTAL
    /* recv[rank * count .. (rank + 1) * count) = that rank's part for this rank of send. */
    template <class T>
    Work all_to_all(const T* send, T* recv, std::size_t count) {
        ddp_work* work = nullptr;
        detail::call(ddp_all_to_all, get(), static_cast<const void*>(send),
                     static_cast<void*>(recv), count, dtype_of<T>::value, &work);
        return Work(work);
    }
    /* The same with a count for each rank; both lists have world_size() numbers. */
    template <class T>
    Work all_to_all(const T* send, const std::vector<std::uint64_t>& send_counts, T* recv,
                    const std::vector<std::uint64_t>& recv_counts) {
        if (send_counts.size() != recv_counts.size())
            throw Error(DDP_ERROR_INVALID_ARGUMENT, "send_counts and recv_counts differ in length");
        ddp_work* work = nullptr;
        detail::call(ddp_all_to_allv, get(), static_cast<const void*>(send),
                     static_cast<void*>(recv), send_counts.data(), recv_counts.data(),
                     send_counts.size(), dtype_of<T>::value, &work);
        return Work(work);
    }
    /* One group of these, which take turns. Their handles may go. */
    static Group round_robin(const std::vector<const Group*>& groups) {
        std::vector<ddp_group*> handles;
        for (const Group* group : groups) handles.push_back(group ? group->get() : nullptr);
        ddp_group* out = nullptr;
        detail::call(ddp_group_round_robin, static_cast<ddp_group* const*>(handles.data()),
                     handles.size(), &out);
        return Group(out);
    }
#endif
    void abort(const std::string& reason) {
        detail::call(ddp_group_abort, get(), reason.c_str());
    }
};

}  // namespace ddp

#endif  // DDP_GROUP_HPP
