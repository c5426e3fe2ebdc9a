#include "fuzz/program.h"

#include <cstring>

namespace fuzz {

void Program::check_status(ddp_status status, ddp_error* error, bool wants_error) const {
    check(status <= DDP_OK && status >= DDP_ERROR_NONFINITE, "a call returns an unknown status");
    check(status != DDP_ERROR_INTERNAL || !honest_,
          error ? ddp_error_message(error) : "a call says that libddp has a defect");
    check((error != nullptr) == (wants_error && status != DDP_OK),
          "an error comes with DDP_OK, or is missing");
    if (!error) return;
    check(ddp_error_code(error) == status, "an error has another code than the call returns");
    check(std::strlen(ddp_error_message(error)) > 0, "an error has no message");
    ddp_error_free(error);
}

Program::~Program() {
    // Works of the program's own may hold back others.
    for (Work& work : works_)
        if (work.of_program) ddp_work_complete(work.handle, DDP_OK, nullptr, nullptr);
    for (Context& context : contexts_) free_context(context);
    for (Work& work : works_) free_work(work);
    for (ddp_layout* layout : layouts_) ddp_layout_free(layout);
    for (void* allocated : allocated_) ddp_mem_free(allocated, nullptr);
}

ddp_param Program::param(const Context& context) {
    const std::uint8_t which = bytes_.byte();
    if (which >= 250) return bytes_.number<std::int32_t>();
    return static_cast<ddp_param>(which % (context.params.size() + 1));
}

std::vector<ddp_param> Program::some_params(const Context& context) {
    std::vector<ddp_param> params(bytes_.below(5));
    for (ddp_param& one : params) one = param(context);
    return params;
}

std::string Program::text(const std::vector<const char*>& usual) {
    const std::uint8_t which = bytes_.byte();
    return which < 220 ? usual[which % usual.size()] : std::string(bytes_.piece(40));
}

const Program::Parameter* Program::known(const Context& context, ddp_param param) const {
    const bool is = param >= 0 && static_cast<std::size_t>(param) < context.params.size();
    return is ? &context.params[static_cast<std::size_t>(param)] : nullptr;
}

void Program::step() {
    static constexpr Call calls[] = {&Program::create_context,
                                     &Program::register_param,
                                     &Program::register_buffer,
                                     &Program::set_up,
                                     &Program::commit,
                                     &Program::step_begin,
                                     &Program::grad_ready,
                                     &Program::all_ready,
                                     &Program::put,
                                     &Program::sparse,
                                     &Program::factors,
                                     &Program::finalize,
                                     &Program::wait_param,
                                     &Program::discard,
                                     &Program::set_sync,
                                     &Program::mark_unused,
                                     &Program::set_frozen,
                                     &Program::skip,
                                     &Program::set_weight,
                                     &Program::join,
                                     &Program::plan,
                                     &Program::statistics,
                                     &Program::view,
                                     &Program::ask,
                                     &Program::set_group,
                                     &Program::averager,
                                     &Program::use_hook,
                                     &Program::compress_hook,
                                     &Program::hook_then,
                                     &Program::set_hook,
                                     &Program::set_buffer_hook,
                                     &Program::save_state,
                                     &Program::load_state,
                                     &Program::collective,
                                     &Program::use_work,
                                     &Program::create_work,
                                     &Program::then,
                                     &Program::memory_of_group,
                                     &Program::others,
                                     &Program::finalize,
                                     &Program::step_begin,
                                     &Program::all_ready,
                                     &Program::set_reduced_callback,
                                     &Program::split,
                                     &Program::free_one_context,
                                     &Program::abort,
                                     &Program::groups,
                                     &Program::set_owner,
                                     &Program::pieces,
                                     &Program::publish,
                                     &Program::set_update,
                                     &Program::optimizer,
                                     &Program::norms,
                                     &Program::votes,
                                     &Program::all_to_all,
                                     &Program::share_batch};
    (this->*calls[bytes_.below(std::size(calls))])();
}

}  // namespace fuzz
