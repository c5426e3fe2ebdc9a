#include "capi/guard.h"
#include "comm/group.h"
#include "ddp/group.h"
#include "util/deadline.h"

using namespace libddp;

namespace {

Work& work_of(ddp_work* work) {
    return *require(work, "work")->impl;
}

void throw_if_failed(const Work& work) {
    if (!work.result().ok()) throw Error(work.result());
}

}  // namespace

ddp_status ddp_work_test(ddp_work* work, int32_t* done, ddp_error** error) {
    return guard(error, "ddp_work_test", [&] {
        Work& w = work_of(work);
        require(done, "done");
        w.poll();
        *done = w.done() ? 1 : 0;
        if (!w.done()) return;
        throw_if_failed(w);
        *done = w.settled() ? 1 : 0;
    });
}

ddp_status ddp_work_wait(ddp_work* work, int64_t timeout_ms, ddp_error** error) {
    return guard(error, "ddp_work_wait", [&] {
        Work& w = work_of(work);
        std::optional<Deadline> deadline;
        if (timeout_ms < 0) w.poll();
        if (timeout_ms != 0) deadline = Deadline::after_ms(std::max<std::int64_t>(timeout_ms, 0));
        const auto late = [timeout_ms](const char* who, const char* what) {
            if (timeout_ms < 0)
                fail_call(DDP_ERROR_TIMEOUT, who, " has not ", what, " yet; it goes on");
            fail_call(DDP_ERROR_TIMEOUT, who, " has not ", what, " within ", timeout_ms,
                      " ms; it goes on");
        };
        if (!w.wait(deadline)) late("the operation", "finished");
        throw_if_failed(w);
        if (!w.settle(deadline)) late("the device", "come to the result");
    });
}

ddp_status ddp_work_then(ddp_work* work, ddp_work_fn fn, void* user_data, void (*destroy)(void*),
                         uint32_t flags, ddp_work** out, ddp_error** error) {
    return guard(error, "ddp_work_then", [&] {
        Work& w = work_of(work);
        require(fn, "fn");
        require(out, "out");
        require_flags(flags, DDP_WORK_ANY_THREAD);
        // Everything that can fail comes before user_data changes hands.
        auto handle = std::make_unique<ddp_work>();
        struct UserData {
            void* data = nullptr;
            void (*destroy)(void*) = nullptr;
            ~UserData() {
                if (destroy) destroy(data);
            }
        };
        auto owned = std::make_shared<UserData>();
        auto run = [fn, owned](const OpTag& tag) -> WorkPtr {
            const ScopedTag scope(tag);
            ddp_work* next = nullptr;
            ddp_error* failure = nullptr;
            ddp_status status = fn(owned->data, &next, &failure);
            std::unique_ptr<ddp_work> next_handle(next);
            if (status != DDP_OK) throw Error(take_user_error(status, failure, "a continuation"));
            return next_handle ? next_handle->impl : nullptr;
        };
        ContinuationFn continuation(std::move(run));
        owned->data = user_data;
        owned->destroy = destroy;
        owned.reset();
        handle->impl =
            w.then(std::move(continuation), (flags & DDP_WORK_ANY_THREAD) != 0, current_tag());
        *out = handle.release();
    });
}

ddp_status ddp_work_create(int64_t timeout_ms, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_work_create", [&] {
        require(work, "work");
        if (timeout_ms < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "timeout_ms is ", timeout_ms,
                      "; it must not be negative");
        *work = new ddp_work{Work::user_completed(timeout_ms > 0 ? timeout_ms : kDefaultTimeoutMs)};
    });
}

ddp_status ddp_work_complete(ddp_work* work, ddp_status status, const char* message,
                             ddp_error** error) {
    return guard(error, "ddp_work_complete", [&] {
        Work& w = work_of(work);
        if (!w.is_user_completed())
            fail_call(DDP_ERROR_INVALID_STATE,
                      "this work is an operation of libddp; only works of ddp_work_create are "
                      "completed by the program");
        ErrorInfo result;
        const bool known = status < DDP_OK && status >= kLastError;
        if (status != DDP_OK)
            result = {known ? status : DDP_ERROR_CALLBACK,
                      text_or(message, "a work was completed with an error")};
        if (!w.complete(std::move(result)))
            fail_call(DDP_ERROR_INVALID_STATE, "the work is finished already");
    });
}

void ddp_work_free(ddp_work* work) {
    free_handle(work);
}
