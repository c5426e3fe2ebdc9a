# The parts of a context that are about hooks (ddp/hook.h, ddp/builtin_hooks.h, ddp/overlap.h).

"Installs a function of the context's, or none, with f(context, entry, user_data, destroy)."
function install_in(f::F, ctx::Context, fn, entry::Ptr{Cvoid}, more...) where {F}
    sweep()
    fn === nothing && return call(f, ctx.handle, C_NULL, C_NULL, C_NULL, more...)
    callback = Callback(nothing, WeakRef(ctx), ctx.handle.raised, ctx.handle.lent)
    ctx.functions[callback.cell] = fn
    return install(entry, callback) do entry, data, destroy, keep
        call(f, ctx.handle, entry, data, destroy, more...; keep=keep)
    end
end

"""
    set_hook!(function, ctx)

function(group, bucket) leaves in the bucket what gradients become, or returns a `Work` that ends when the result is
there. `nothing` instead of a function: back to the default.
"""
set_hook!(hook, ctx::Context) = install_in(LibDDP.ddp_set_comm_hook, ctx, hook, ENTRY_HOOK[])

"""
    hook_then!(function, ctx)

Wraps the installed hook: function(group, bucket) is called after it has reduced a bucket.
"""
hook_then!(fn, ctx::Context) = install_in(LibDDP.ddp_hook_then, ctx, fn, ENTRY_BUCKET[], UInt32(0))

"""
    set_buffer_hook!(function, ctx)

function(group, buffers) runs instead of sending rank 0's buffers; `nothing`: back to the default. `buffers`: the arrays, as registered.
"""
set_buffer_hook!(hook, ctx::Context) = install_in(LibDDP.ddp_set_buffer_hook, ctx, hook, ENTRY_BUFFERS[])

"""
    set_reduced_callback!(function, ctx)

function(parameter, used) is called when a gradient is final; `nothing`: none.
"""
set_reduced_callback!(fn, ctx::Context) = install_in(LibDDP.ddp_set_reduced_callback, ctx, fn, ENTRY_REDUCED[])

"""
    use_hook!(ctx, name; options...)

A built-in hook: use_hook!(ctx, "powersgd"; rank=2, start=100). docs/hooks.md lists them.
"""
function use_hook!(ctx::Context, name::AbstractString; options...)
    list = join(("$key=$(value isa Bool ? Int(value) : value)" for (key, value) in options), ",")
    return call(LibDDP.ddp_use_hook, ctx.handle, String(name), list)
end

"Wraps the installed hook: it receives buckets cast to Float16 or DDP.BF16."
compress_hook!(ctx::Context, type) = call(LibDDP.ddp_compress_hook, ctx.handle, dtype_of("type", type))

"The installed hook's name: \"allreduce\", \"user\", ..."
hook_name(ctx::Context) = ask(pointer -> unsafe_string(LibDDP.ddp_hook_name(pointer)), ctx.handle)

"The state of this rank's hook, in the safetensors format."
function hook_state(ctx::Context)
    data, size = Ref{Ptr{Cvoid}}(C_NULL), Ref{Csize_t}(0)
    return call(LibDDP.ddp_hook_state_save, ctx.handle, data, size; keep=() -> take_bytes(data[], size[], LibDDP.ddp_free))
end

"Loads a saved state. shared_only: only what is the same on every rank, for another world size."
load_hook_state!(ctx::Context, state::Vector{UInt8}; shared_only::Bool=false) =
    call(LibDDP.ddp_hook_state_load, ctx.handle, state, Csize_t(length(state)),
         shared_only * LibDDP.DDP_HOOK_STATE_SHARED_ONLY)
