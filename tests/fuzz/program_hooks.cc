// The program's calls of hooks and callbacks.
#include <cstring>
#include <memory>

#include "fuzz/program.h"

namespace fuzz {
namespace {

// The behaviour of a function of the program when it is called.
struct Behaviour {
    std::uint8_t what;
    std::vector<std::byte> result;  // of ddp_bucket_set_buffer
};

Behaviour* behave(std::uint8_t what) {
    return new Behaviour{what, {}};
}

void destroy(void* data) {
    delete static_cast<Behaviour*>(data);
}

// A function that takes user_data over, unless it fails.
template <class Call>
void give(Behaviour* behaviour, Call call) {
    if (call(behaviour) != DDP_OK) destroy(behaviour);
}

ddp_status fail_in_program(std::uint8_t what, ddp_error** error) {
    if ((what & 1) != 0)
        *error = ddp_error_create(DDP_ERROR_CALLBACK, "the program's function fails");
    return what % 3 == 0 ? DDP_ERROR_IO : ddp_status{7};
}

ddp_status hook(void* data, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                ddp_error** error) {
    auto& behaviour = *static_cast<Behaviour*>(data);
    const std::uint8_t what = behaviour.what;
    for (std::int32_t i = -1; i <= ddp_bucket_param_count(bucket); ++i) {
        ddp_tensor tensor;
        tensor.struct_size = sizeof tensor;
        const bool there = i >= 0 && i < ddp_bucket_param_count(bucket);
        check((ddp_bucket_gradient(bucket, i, &tensor, nullptr) == DDP_OK) == there,
              "a bucket lacks a gradient");
        check((ddp_bucket_parameter(bucket, i, &tensor, nullptr) == DDP_OK) == there,
              "a bucket lacks a parameter");
    }
    check(ddp_bucket_index(bucket) >= 0 && ddp_bucket_step(bucket) >= 0, "a bucket has no number");
    void* const buffer = ddp_bucket_buffer(bucket);
    const std::size_t count = ddp_bucket_count(bucket);
    if (what >= 240) return fail_in_program(what, error);
    if (what < 60) return DDP_OK;
    if (what < 100) {
        behaviour.result.assign(count * 16, std::byte{});
        ddp_bucket_set_buffer(bucket, behaviour.result.data(), static_cast<ddp_dtype>(1 + what % 9),
                              nullptr);
        return DDP_OK;
    }
    if (what < 160)
        return ddp_allreduce(group, nullptr, buffer, count, ddp_bucket_dtype(bucket),
                             ddp_bucket_op(bucket), work, error);
    const ddp_status made = ddp_work_create(1000, work, error);
    if (made == DDP_OK)
        ddp_work_complete(*work, what < 230 ? DDP_OK : DDP_ERROR_IO,
                          "the program's transport fails", nullptr);
    return made;
}

}  // namespace

void Program::use_hook() {
    const std::string name =
        text({"powersgd", "onebit", "topk", "quantize_per_tensor", "fp16", "bf16(powersgd)",
              "batched_powersgd", "post_local_sgd", "noop", "allreduce", "quantize_per_channel",
              "fp16(topk)", "quantize", "chunks"});
    const std::string options = text(
        {"", "min_elements=0", "start=0,rank=2", "start=0", "min_elements=0,block=8",
         "ratio=0.5,min_elements=1", "start=1,min_rate=0.1,warm_start=0",
         "start=0,rank=3,orthogonalization=qr", "type=e5m2,rounding=stochastic,error_feedback=1",
         "chunk=8,ratio=0.2,momentum=0.9,warmup=1"});
    call(ddp_use_hook, handle(), odd() ? nullptr : name.c_str(), odd() ? nullptr : options.c_str());
}

void Program::hook_then() {
    ddp_context* const context = handle();
    const auto then = [](void* data, ddp_group*, ddp_bucket* bucket,
                         ddp_error** error) -> ddp_status {
        const std::uint8_t what = static_cast<Behaviour*>(data)->what;
        check(ddp_bucket_buffer(bucket) != nullptr, "a bucket has no memory");
        return what >= 240 ? fail_in_program(what, error) : ddp_status{DDP_OK};
    };
    give(behave(bytes_.byte()), [&](void* data) {
        return call(
            ddp_hook_then, context, odd() ? nullptr : +then, data, &destroy,
            odd() ? std::uint32_t{bytes_.byte()} : static_cast<std::uint32_t>(bytes_.below(2)));
    });
}

void Program::set_hook() {
    ddp_context* const context = handle();
    give(behave(bytes_.byte()), [&](void* data) {
        return call(ddp_set_comm_hook, context, odd() ? nullptr : &hook, data, &destroy);
    });
}

void Program::set_buffer_hook() {
    ddp_context* const context = handle();
    const auto function = [](void* data, ddp_group*, const ddp_tensor* const* buffers,
                             std::size_t count, ddp_error** error) -> ddp_status {
        const std::uint8_t what = static_cast<Behaviour*>(data)->what;
        for (std::size_t i = 0; i < count; ++i)
            check(buffers[i]->param == -1, "a buffer is a parameter");
        return what >= 240 ? fail_in_program(what, error) : ddp_status{DDP_OK};
    };
    give(behave(bytes_.byte()), [&](void* data) {
        return call(ddp_set_buffer_hook, context, odd() ? nullptr : +function, data, &destroy);
    });
}

void Program::set_reduced_callback() {
    ddp_context* const context = handle();
    const auto function = [](void* data, ddp_param param, std::int32_t used,
                             ddp_error** error) -> ddp_status {
        const std::uint8_t what = static_cast<Behaviour*>(data)->what;
        check(param >= 0 && (used == 0 || used == 1), "a callback gets a parameter that is none");
        return what >= 240 ? fail_in_program(what, error) : ddp_status{DDP_OK};
    };
    give(behave(bytes_.byte()), [&](void* data) {
        return call(ddp_set_reduced_callback, context, odd() ? nullptr : +function, data, &destroy);
    });
}

void Program::save_state() {
    ddp_context* const context = handle();
    void* data = nullptr;
    std::size_t size = 0;
    if (call(ddp_hook_state_save, context, odd() ? nullptr : &data, &size) != DDP_OK) return;
    state_.assign(static_cast<const char*>(data), size);
    ddp_free(data);
    check(call(ddp_hook_state_load, context, state_.data(), state_.size(), std::uint32_t{0}) ==
              DDP_OK,
          "a hook does not load what it has saved");
}

void Program::load_state() {
    std::string given = state_;
    if (bytes_.flag())
        for (std::size_t i = bytes_.below(4); i > 0 && !given.empty(); --i)
            given[bytes_.number<std::uint16_t>() % given.size()] = static_cast<char>(bytes_.byte());
    if (odd()) given.resize(bytes_.number<std::uint16_t>() % (given.size() + 1));
    call(ddp_hook_state_load, handle(), odd() ? nullptr : given.data(), given.size(),
         odd() ? std::uint32_t{bytes_.byte()} : static_cast<std::uint32_t>(bytes_.below(2)));
}

}  // namespace fuzz
