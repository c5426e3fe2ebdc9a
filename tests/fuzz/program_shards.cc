// The program's calls of shards, norms, optimizers and votes.
#include <cstddef>
#include <cstring>

#include "fuzz/program.h"

namespace fuzz {
namespace {

// An optimizer of the program's: it writes to all that it is given.
ddp_status update(void* data, const ddp_piece* const* pieces, std::size_t count,
                  ddp_error** error) {
    const auto fails = reinterpret_cast<std::uintptr_t>(data) >= 240;
    if (fails) *error = ddp_error_create(DDP_ERROR_CALLBACK, "the program's optimizer fails");
    for (std::size_t i = 0; i < count; ++i)
        check(pieces[i]->count > 0 && pieces[i]->gradient, "a piece has nothing to update from");
    return fails ? DDP_ERROR_CALLBACK : DDP_OK;
}

}  // namespace

void Program::set_owner() {
    const Context& context = any_context();
    const ddp_param which = param(context);
    static const double costs[] = {0, 1, 1e300, -1, 0.0 / 0.0};
    call(ddp_set_owner, context.handle, which,
         odd() ? bytes_.number<ddp_owner>() : static_cast<ddp_owner>(bytes_.below(3)),
         costs[bytes_.below(5)]);
}

void Program::pieces() {
    const Context& context = any_context();
    for (std::int32_t i = -odd(); i < ddp_piece_count(context.handle) + odd(); ++i) {
        Roomy<ddp_piece> piece;
        piece.struct_size = sizeof(ddp_piece);
        spoil_size(piece);
        if (call(ddp_piece_get, context.handle, i, odd() ? nullptr : &piece) != DDP_OK) continue;
        if (piece.struct_size < sizeof(ddp_piece)) continue;
        const Parameter* parameter = known(context, piece.param);
        check(parameter && piece.first >= 0 && piece.count > 0 &&
                  static_cast<std::size_t>(piece.first + piece.count) <= parameter->count,
              "a piece is not within its parameter");
        const std::size_t bytes =
            static_cast<std::size_t>(piece.count) * ddp_dtype_size(parameter->dtype);
        if (piece.value) std::memset(piece.value, bytes_.byte(), bytes);
    }
}

void Program::publish() {
    const Context& context = any_context();
    if (!odd()) call(ddp_publish, context.handle);
    const ddp_param which = param(context);
    if (odd())
        call(ddp_wait_value_on, context.handle, which, nullptr);
    else
        call(ddp_wait_value, context.handle, which);
}

void Program::set_update() {
    const std::uintptr_t what = bytes_.byte();
    call(ddp_set_update, handle(), odd() ? nullptr : &update, reinterpret_cast<void*>(what),
         nullptr);
}

void Program::optimizer() {
    Context& context = any_context();
    if (bytes_.below(4) == 0) {
        ddp_optimizer_free(context.optimizer);
        context.optimizer = nullptr;
        const std::string name = text({"sgd", "adamw", "lamb", "muon"});
        const std::string options = text({"", "lr=0.1", "lr=0.1,weight_decay=0.1",
                                          "lr=0.1,momentum=0.9", "nesterov=1,momentum=0.5"});
        call(ddp_optimizer_create, context.handle, odd() ? nullptr : name.c_str(),
             odd() ? nullptr : options.c_str(), odd() ? nullptr : &context.optimizer);
    }
    static const double numbers[] = {1, 0.5, 0, -1, 0.0 / 0.0, 1.0 / 0.0};
    if (bytes_.below(4) == 0)
        call(ddp_optimizer_set, context.optimizer, bytes_.flag() ? ddp_param{-1} : param(context),
             text({"lr", "weight_decay", "momentum", "beta1", "eps"}).c_str(),
             numbers[bytes_.below(6)]);
    const double scale = odd() ? numbers[bytes_.below(6)] : 0.5;
    if (bytes_.below(3) == 0)
        call(ddp_optimizer_in_step, context.optimizer, scale);
    else
        call(ddp_optimizer_step, context.optimizer, scale);
    for (std::int32_t i = -odd(); i < ddp_optimizer_state_count(context.optimizer) + odd(); ++i) {
        Roomy<ddp_optimizer_state> state;
        state.struct_size = sizeof(ddp_optimizer_state);
        spoil_size(state);
        if (call(ddp_optimizer_state_get, context.optimizer, i, odd() ? nullptr : &state) !=
                DDP_OK ||
            state.struct_size < sizeof(ddp_optimizer_state))
            continue;
        const auto bytes = static_cast<std::size_t>(state.count) * ddp_dtype_size(state.dtype);
        if (odd()) std::memset(state.data, bytes_.byte(), bytes);
    }
}

void Program::norms() {
    const Context& context = any_context();
    if (bytes_.flag()) {
        static const double orders[] = {2, 1, 1.0 / 0.0, 0, 3, 0.0 / 0.0};
        const auto params = some_params(context);
        std::int32_t made = -1;
        call(ddp_track_grad_norm, context.handle, orders[bytes_.below(6)],
             bytes_.flag() ? nullptr : params.data(), params.size(), odd() ? nullptr : &made);
        return;
    }
    const std::int32_t which =
        odd() ? bytes_.number<std::int32_t>() : static_cast<std::int32_t>(bytes_.below(2));
    double value = 0;
    call(ddp_grad_norm, context.handle, which, odd() ? nullptr : &value);
    const double most = odd() ? bytes_.number<double>() : 0.5;
    call(bytes_.flag() ? ddp_clip_grad_norm : ddp_clip_factor, context.handle, which, most,
         bytes_.flag() ? nullptr : &value);
}

void Program::votes() {
    ddp_context* const context = handle();
    const std::uint32_t bits =
        odd() ? bytes_.number<std::uint32_t>() : static_cast<std::uint32_t>(bytes_.below(16));
    call(ddp_step_vote, context, bits);
    if (bytes_.flag())
        call(ddp_step_vote_level, context,
             odd() ? bytes_.number<std::int32_t>() : static_cast<std::int32_t>(bytes_.below(34)));
    std::uint32_t any = 0, all = 0;
    std::int32_t level = 0;
    if (call(ddp_step_votes, context, bytes_.flag() ? nullptr : &any,
             bytes_.flag() ? nullptr : &all, bytes_.flag() ? nullptr : &level) != DDP_OK)
        return;
    check(level >= 0 && level <= 32, "a level is none");
}

}  // namespace fuzz
