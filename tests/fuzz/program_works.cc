// The program's calls of groups, collectives and works.
#include <cstring>

#include "backends/gloo/transport.h"
#include "fuzz/program.h"

namespace fuzz {

void Program::free_work(Work& work) {
    if (!work.handle) return;
    ddp_status status = DDP_OK;
    if (work.of_program) ddp_work_complete(work.handle, DDP_OK, nullptr, nullptr);
    // The operation may still use the memory.
    if (!work.of_program) status = ddp_work_wait(work.handle, 0, nullptr);
    check(status != DDP_ERROR_TIMEOUT, "an operation does not end");
    ddp_work_free(work.handle);
    work = {};
}

Program::Work& Program::free_slot() {
    Work& work = works_[bytes_.below(works_.size())];
    // Works of the program come first, because they hold this one back.
    for (Work& other : works_)
        if (other.of_program) free_work(other);
    free_work(work);
    return work;
}

void Program::collective() {
    Work& work = free_slot();
    const auto dtype = static_cast<ddp_dtype>(odd() ? bytes_.below(12) : 1 + bytes_.below(9));
    const auto op = static_cast<ddp_reduce_op>(odd() ? bytes_.below(9) : 1 + bytes_.below(5));
    const std::size_t count = bytes_.byte();
    const std::size_t bytes = count * 16 * static_cast<std::size_t>(ddp_group_world_size(group_));
    work.send = memory(bytes);
    work.recv = memory(bytes);
    const void* const send = bytes_.flag() ? nullptr : work.send.get();
    void* const recv = odd() ? nullptr : work.recv.get();
    const std::size_t given = odd() && !recv ? bytes_.number<std::size_t>() : count;
    ddp_work** const out = bytes_.flag() ? &work.handle : nullptr;
    switch (bytes_.below(5)) {
        case 0:
            call(ddp_allreduce, group(), send, recv, given, dtype, op, out);
            break;
        case 1:
            call(ddp_broadcast, group(), recv, given, dtype,
                 odd() ? std::int32_t{bytes_.byte()} : 0, out);
            break;
        case 2:
            call(ddp_allgather, group(), send, recv, given, dtype, out);
            break;
        case 3:
            call(ddp_reduce_scatter, group(), send, recv, given, dtype, op, out);
            break;
        default:
            call(ddp_barrier, group(), out);
    }
}

void Program::all_to_all() {
    Work& work = free_slot();
    const auto dtype = static_cast<ddp_dtype>(odd() ? bytes_.below(12) : 1 + bytes_.below(9));
    const auto world = static_cast<std::size_t>(ddp_group_world_size(group_));
    const bool even = bytes_.flag();
    std::vector<std::uint64_t> send_counts(world), recv_counts(world);
    std::uint64_t sent = 0, received = 0;
    for (std::size_t r = 0; r < world; ++r) {
        sent += send_counts[r] = bytes_.below(40);
        received += recv_counts[r] = odd() ? bytes_.below(40) : send_counts[r];
    }
    const std::uint64_t count = send_counts[0];
    work.send = memory(16 * (even ? count * world : sent));
    work.recv = memory(16 * (even ? count * world : received));
    const void* const send = odd() ? nullptr : work.send.get();
    void* const recv = odd() ? nullptr : work.recv.get();
    if (odd()) send_counts[bytes_.below(world)] = UINT64_MAX - bytes_.byte();
    ddp_work** const out = bytes_.flag() ? &work.handle : nullptr;
    if (even)
        call(ddp_all_to_all, group(), send, recv,
             odd() && !recv ? bytes_.number<std::size_t>() : count, dtype, out);
    else
        call(ddp_all_to_allv, group(), send, recv, odd() ? nullptr : send_counts.data(),
             odd() ? nullptr : recv_counts.data(), odd() ? bytes_.below(world) : world, dtype, out);
}

void Program::use_work() {
    Work& work = works_[bytes_.below(works_.size())];
    std::int32_t done = 0;
    call(ddp_work_test, work.handle, odd() ? nullptr : &done);
    // One that waits for the program would only time out.
    if (!work.of_program || done != 0)
        call(ddp_work_wait, work.handle, odd() ? std::int64_t{-1} : std::int64_t{1000});
    if (bytes_.flag()) free_work(work);
}

void Program::create_work() {
    Work& work = free_slot();
    work.of_program = call(ddp_work_create, odd() ? std::int64_t{-1} : std::int64_t{1000},
                           &work.handle) == DDP_OK;
    if (!work.of_program) return;
    if (bytes_.flag()) return;
    const std::string message = "the program says: " + std::string(bytes_.piece(10));
    call(ddp_work_complete, work.handle,
         static_cast<ddp_status>(-static_cast<std::int32_t>(bytes_.below(25))),
         odd() ? nullptr : message.c_str());
    call(ddp_work_complete, work.handle, DDP_OK, nullptr);
}

void Program::then() {
    struct Next {
        ddp_group* group;
        std::uint8_t what;
        float number = 0;
    };
    const auto function = [](void* data, ddp_work** next, ddp_error** error) -> ddp_status {
        auto& step = *static_cast<Next*>(data);
        if (step.what >= 240) return DDP_ERROR_IO;
        if (step.what < 120) return DDP_OK;
        if (step.what < 200)
            return ddp_allreduce(step.group, nullptr, &step.number, 1, DDP_F32, DDP_AVG, next,
                                 error);
        const ddp_status made = ddp_work_create(1000, next, error);
        if (made == DDP_OK) ddp_work_complete(*next, DDP_OK, nullptr, nullptr);
        return made;
    };
    const Work& first = works_[bytes_.below(works_.size())];
    auto* const next = new Next{group_, bytes_.byte()};
    ddp_work* out = nullptr;
    const ddp_status status = call(
        ddp_work_then, odd() ? nullptr : first.handle, odd() ? nullptr : +function, next,
        [](void* data) { delete static_cast<Next*>(data); },
        odd() ? std::uint32_t{bytes_.byte()} : static_cast<std::uint32_t>(bytes_.below(2)),
        odd() ? nullptr : &out);
    if (status != DDP_OK) delete next;
    if (!out) return;
    if (!first.of_program) call(ddp_work_wait, out, std::int64_t{1000});
    ddp_work_free(out);
}

void Program::memory_of_group() {
    void*& allocated = allocated_[bytes_.below(allocated_.size())];
    call(ddp_mem_free, allocated);
    allocated = nullptr;
    const std::size_t size = bytes_.number<std::uint16_t>();
    if (call(ddp_mem_alloc, group(), size, odd() ? nullptr : &allocated) == DDP_OK)
        std::memset(allocated, 1, size);
    int other = 0;
    if (odd()) call(ddp_mem_free, static_cast<void*>(&other));
}

// Seldom: it makes threads.
void Program::split() {
    if (!odd()) return;
    ddp_group* part = nullptr;
    call(ddp_group_split, group(),
         static_cast<std::int32_t>(static_cast<std::int8_t>(bytes_.byte())),
         bytes_.number<std::int32_t>(), odd() ? nullptr : &part);
    ddp_group_free(part);
}

void Program::groups() {
    if (!odd()) return;
    Roomy<ddp_group_options> options;
    ddp_group_options_init(&options);
    options.rank = odd() ? bytes_.number<std::int32_t>() : 0;
    // more than one would wait for others
    options.world_size = odd() ? -static_cast<std::int32_t>(bytes_.byte()) : 1;
    options.timeout_ms = odd() ? -static_cast<std::int64_t>(bytes_.byte()) : 1000;
    static const ddp_status gloo = ddp_backend_register(libddp::gloo_backend(), nullptr);
    check(gloo == DDP_OK, "gloo is no backend");
    const std::string backend = text({"shm", "gloo", "hierarchical", "auto", "none"});
    const std::string settings =
        text({"", "algorithm=ring", "lanes=2", "nonsense=1", "algorithm=direct,lanes=9"});
    const std::string name(bytes_.piece(10));
    options.backend = backend.find('/') == std::string::npos ? backend.c_str() : nullptr;
    options.backend_options =
        settings.find("host") == std::string::npos ? settings.c_str() : nullptr;
    options.group_name = bytes_.flag() ? name.c_str() : nullptr;
    options.flags =
        odd() ? bytes_.number<std::uint32_t>() : static_cast<std::uint32_t>(bytes_.below(4));
    options.round_robin = static_cast<std::uint32_t>(bytes_.below(4));
    options.init_method = odd() ? "nonsense" : nullptr;
    spoil_size(options);
    ddp_group* made = nullptr;
    call(ddp_group_create, &options, odd() ? nullptr : &made);
    ddp_group* const parts[] = {group_, odd() ? group_ : made};
    ddp_group* together = nullptr;
    if (made)
        call(ddp_group_round_robin, odd() ? nullptr : parts, bytes_.below(4) == 0 ? 0 : 2,
             &together);
    ddp_group_free(together);
    ddp_group_free(made);
}

void Program::others() {
    Roomy<ddp_environment> environment;
    environment.struct_size = sizeof(ddp_environment);
    spoil_size(environment);
    call(ddp_environment_get, odd() ? nullptr : &environment);
    call(ddp_group_status, group());
    check(std::strlen(ddp_status_name(bytes_.number<std::int32_t>())) > 0, "a status has no name");
    check(std::strlen(ddp_dtype_name(bytes_.number<std::int32_t>())) > 0, "a type has no name");
    const std::string message(bytes_.piece(10));
    ddp_error* const error =
        ddp_error_create(bytes_.number<std::int32_t>(), odd() ? nullptr : message.c_str());
    check(ddp_error_code(error) < 0, "an error is none");
    ddp_error_free(error);
    ddp_group_backend(group());
    ddp_error_free(nullptr);
    ddp_store* store = nullptr;
    if (odd()) call(ddp_group_store, static_cast<ddp_group*>(nullptr), &store);
}

}  // namespace fuzz
