// A program that uses libddp through its public functions, in an order and with arguments that
// bytes choose. It keeps the rules of the headers that a library cannot check: pointers lead to as
// much memory as they must, and nothing is used after it was freed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/ddp.h"
#include "fuzz/target.h"

namespace fuzz {

// A struct, and behind it as much as the largest size that libddp takes.
template <class Struct>
struct Roomy : Struct {
    char more[4096] = {};
};

// Memory of exactly so many bytes, zeroed.
using Memory = std::unique_ptr<std::byte[]>;

class Program {
public:
    // group: not NULL; the caller's. honest: other ranks send what libddp sends. Otherwise
    // DDP_ERROR_INTERNAL is an answer, too.
    Program(Reader& bytes, ddp_group* group, bool honest = true)
        : bytes_(bytes), group_(group), honest_(honest) {}
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // One call, or a few that belong together.
    void step();

private:
    using Call = void (Program::*)();

    struct Parameter {
        ddp_dtype dtype = DDP_F32;
        std::vector<std::int64_t> shape;
        std::size_t count = 1;
        Memory data, grad;

        std::size_t bytes() const { return count * ddp_dtype_size(dtype); }
    };
    struct Context {
        ddp_context* handle = nullptr;
        ddp_averager* averager = nullptr;
        ddp_optimizer* optimizer = nullptr;
        std::vector<Parameter> params;  // those that were accepted
        std::vector<Memory> buffers;
    };
    struct Work {
        ddp_work* handle = nullptr;
        bool of_program = false;  // of ddp_work_create
        Memory send, recv;
    };

    // Checks what every function promises, whatever its arguments.
    template <class Function, class... Arguments>
    ddp_status call(Function function, Arguments... arguments) {
        ddp_error* error = nullptr;
        const bool wants_error = !odd();
        const ddp_status status = function(arguments..., wants_error ? &error : nullptr);
        check_status(status, error, wants_error);
        return status;
    }
    void check_status(ddp_status status, ddp_error* error, bool wants_error) const;

    // Arguments. Most are good ones.
    bool odd() { return bytes_.byte() >= 250; }
    Context& any_context() { return contexts_[bytes_.below(contexts_.size())]; }
    ddp_context* handle() { return odd() ? nullptr : any_context().handle; }
    ddp_group* group() { return odd() ? nullptr : group_; }
    ddp_param param(const Context& context);
    std::vector<ddp_param> some_params(const Context& context);
    std::string text(const std::vector<const char*>& usual);
    // A size that the program did not set, or of a newer header.
    template <class Struct>
    void spoil_size(Struct& options) {
        if (odd())
            options.struct_size =
                bytes_.below(2) == 0 ? 8 * bytes_.byte() : bytes_.number<std::uint64_t>();
    }
    static Memory memory(std::size_t bytes) {
        return Memory(new std::byte[bytes > 0 ? bytes : 1]());
    }
    const Parameter* known(const Context& context, ddp_param param) const;

    // program_context.cc
    void create_context();
    void register_param();
    void register_buffer();
    void set_up();
    void free_context(Context& context);
    void free_one_context() { free_context(any_context()); }
    void commit() { call(ddp_commit, handle()); }
    void step_begin() { call(ddp_step_begin, handle()); }
    void grad_ready();
    void all_ready();
    void put();
    void sparse();
    void factors();
    void finalize();
    void wait_param();
    void discard() { call(ddp_step_discard, handle()); }
    void set_sync() { call(ddp_set_sync, handle(), bytes_.below(2)); }
    void mark_unused();
    void set_frozen();
    void skip();
    void set_weight();
    void share_batch();
    void join() { call(ddp_join, handle()); }
    void plan();
    void statistics();
    void view();
    void ask();
    void set_group() { call(ddp_context_set_group, handle(), group()); }
    void abort();
    void averager();
    void outer_optimizer(ddp_averager* averager);

    // program_hooks.cc
    void use_hook();
    void compress_hook() {
        call(ddp_compress_hook, handle(), static_cast<ddp_dtype>(bytes_.below(11)));
    }
    void hook_then();
    void set_hook();
    void set_buffer_hook();
    void set_reduced_callback();
    void save_state();
    void load_state();

    // program_shards.cc
    void set_owner();
    void pieces();
    void publish();
    void set_update();
    void optimizer();
    void norms();
    void votes();

    // program_works.cc
    void collective();
    void all_to_all();
    void use_work();
    void create_work();
    void then();
    void free_work(Work& work);
    void memory_of_group();
    void split();
    void groups();
    void others();
    Work& free_slot();

    Reader& bytes_;
    ddp_group* const group_;
    const bool honest_;
    std::array<Context, 2> contexts_;
    std::array<Work, 4> works_;
    std::array<ddp_layout*, 2> layouts_{};
    std::array<void*, 2> allocated_{};
    std::string state_, plan_;  // as saved last
};

}  // namespace fuzz
