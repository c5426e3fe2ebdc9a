# Julia functions that C calls: hooks, continuations, callbacks. They run only on threads that are inside a call of libddp's:
# nothing here passes DDP_WORK_ANY_THREAD, and a thread that Julia does not know would crash it.
#
# A thread of libddp's own may only report that a callback is no longer needed. So the function that it calls is not
# Julia's but `sem_post` of the C library, on a semaphore at the beginning of user_data; `sweep` looks for it. Behind
# the semaphore stands the address of the Callback, which CALLBACKS keeps where it is.

mutable struct Callback
    fn::Any           # the function; nothing where the context keeps it
    context::WeakRef  # so that a hook that knows its context is garbage with it
    cell::Ptr{Cvoid}
    raised::Vector{Any}
    lent::Vector{Any}
end

const CELL_BYTES, CELL_OBJECT = 64, 32  # a sem_t has 32 bytes at most on 64-bit Linux
const CALLBACKS = Dict{Ptr{Cvoid},Callback}()
const CALLBACKS_LOCK = ReentrantLock()

function Callback(fn, context::WeakRef, raised, lent)
    cell = Libc.calloc(1, CELL_BYTES)
    cell == C_NULL && throw(OutOfMemoryError())
    ccall(:sem_init, Cint, (Ptr{Cvoid}, Cint, Cuint), cell, 0, 0)
    callback = Callback(fn, context, cell, raised, lent)
    unsafe_store!(Ptr{Ptr{Cvoid}}(cell + CELL_OBJECT), pointer_from_objref(callback))
    lock(() -> CALLBACKS[cell] = callback, CALLBACKS_LOCK)
    return callback
end

callback_at(cell::Ptr{Cvoid}) =
    unsafe_pointer_to_objref(unsafe_load(Ptr{Ptr{Cvoid}}(cell + CELL_OBJECT)))::Callback

function drop(callback::Callback)
    lock(() -> delete!(CALLBACKS, callback.cell), CALLBACKS_LOCK)
    context = callback.context.value
    context === nothing || delete!(context.functions, callback.cell)
    Libc.free(callback.cell)
    return nothing
end

function unused(cell::Ptr{Cvoid})
    posted = Ref{Cint}(0)
    ccall(:sem_getvalue, Cint, (Ptr{Cvoid}, Ref{Cint}), cell, posted)
    return posted[] > 0
end

function drop_unused_callbacks()
    isempty(CALLBACKS) && return nothing
    foreach(drop, lock(() -> Callback[each for (cell, each) in CALLBACKS if unused(cell)], CALLBACKS_LOCK))
    return nothing
end

"Runs `install(fn, user_data, destroy, keep)`, a call, for a callback, which is dropped if C has not taken it over."
function install(install::F, entry::Ptr{Cvoid}, callback::Callback, keep::K=nothing_made) where {F,K}
    taken = Ref(false)
    try
        return install(entry, callback.cell, cglobal(:sem_post), () -> (taken[] = true; keep()))
    catch
        taken[] || drop(callback)
        rethrow()
    end
end

# RUNNING ONE

# Works that are made while a callback runs share the list of exceptions of what it belongs to.
const RAISED_KEY = :DDP_raised
raised_here() = get(task_local_storage(), RAISED_KEY, nothing)

"The function of a callback, with the context that it belongs to."
function function_of(callback::Callback)
    callback.fn === nothing || return callback.fn, nothing
    context = callback.context.value
    context === nothing && throw(DDPError(LibDDP.DDP_ERROR_INVALID_STATE,
                                          "the context of this callback is gone: keep it while its steps run"))
    return context.functions[callback.cell], context
end

"Runs body(callback) with the right to touch Julia's memory. Nothing is thrown through C."
function guarded(body::F, cell::Ptr{Cvoid}, error::Ptr{Ptr{ddp_error}}) where {F}
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    Threads.atomic_add!(CALLBACKS_RUNNING, 1)
    status = guarded_body(body, cell, error)
    Threads.atomic_sub!(CALLBACKS_RUNNING, 1)
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return status
end

@noinline function guarded_body(body::F, cell::Ptr{Cvoid}, error::Ptr{Ptr{ddp_error}}) where {F}
    try
        callback = callback_at(cell)
        outer = raised_here()
        task_local_storage()[RAISED_KEY] = callback.raised
        try
            Base.reenable_sigint(() -> Base.invokelatest(body, callback))
            return LibDDP.DDP_OK
        catch exception
            return keep_exception(callback, exception, error)
        finally
            task_local_storage()[RAISED_KEY] = outer
        end
    catch
        return LibDDP.DDP_ERROR_CALLBACK
    end
end

"Keeps an exception for the call that it comes out of, and tells C. An error of libddp's stays what it is."
function keep_exception(callback::Callback, exception, error::Ptr{Ptr{ddp_error}})
    lock(() -> push!(callback.raised, exception), RAISED_LOCK)
    status = exception isa DDPError ? exception.status : LibDDP.DDP_ERROR_CALLBACK
    message = try
        string(typeof(exception), ": ", exception isa DDPError ? exception.message : sprint(showerror, exception))
    catch
        string(typeof(exception))
    end
    error == C_NULL || unsafe_store!(error, LibDDP.ddp_error_create(status, replace(message, '\0' => ' ')))
    return status
end

"How messages call a function of the program's: halved (train.jl, line 12)."
function name_of(fn)
    method = iterate(methods(fn))
    method === nothing && return string(typeof(fn))
    return "$(method[1].name) ($(basename(string(method[1].file))), line $(method[1].line))"
end

# Results of functions. A hook or continuation returns nothing, or a work that libddp takes over, whose arrays stay
# alive with `lent`. A Julia function returns its last value, so anything else may be an oversight, and may be something
# that should have been waited for.
const OF_HOOK = "leave the result in the bucket and return nothing, or return a Work after which it is there"
const OF_CONTINUATION = "return nothing, or a Work with which the result is to end"

pass_on(callback::Callback, fn, result::Nothing, work::Ptr{Ptr{ddp_work}}, what, instead) = nothing
function pass_on(callback::Callback, fn, result::Work, work::Ptr{Ptr{ddp_work}}, what, instead)
    isopen(result.handle) ||
        throw(DDPError(LibDDP.DDP_ERROR_INVALID_STATE, "the $what $(name_of(fn)) returned a Work that libddp has taken over before, " *
                                                       "or that is closed: each Work can be returned once; $instead"))
    lock(() -> push!(callback.lent, result.handle), RAISED_LOCK)
    unsafe_store!(work, Ptr{ddp_work}(give_away(result.handle)))
    return nothing
end
pass_on(callback::Callback, fn, result, work::Ptr{Ptr{ddp_work}}, what, instead) =
    throw(ArgumentError("the $what $(name_of(fn)) returned neither nothing nor a Work, but a $(typeof(result)): $instead"))

"Of the other functions: whatever they return is dropped, but nobody would wait for a work."
finished(fn, result, what) = nothing
finished(fn, result::Union{Work,Task}, what) =
    throw(ArgumentError("the $what $(name_of(fn)) returned a $(typeof(result)), which libddp does not wait for: finish within the call " *
                        "(without async=true), and return nothing"))

"Something that a function is lent until the end of the step."
function lend(callback::Callback, pointer::Ptr)
    handle = Handle(BORROWED, Ptr{Cvoid}(pointer); raised=callback.raised)
    lock(() -> push!(callback.lent, handle), RAISED_LOCK)
    return handle
end

"The arguments of a hook. With the first bucket of a step, what was lent in earlier ones is void, and their works use no arrays any more."
function lend_bucket(callback::Callback, context::Context, group::Ptr{ddp_group}, bucket::Ptr{LibDDP.ddp_bucket})
    step = LibDDP.ddp_bucket_step(bucket)
    lock(RAISED_LOCK) do
        step > context.hook_step && drop_lent(callback.lent)
        context.hook_step = step
    end
    return Group(lend(callback, group)), Bucket(lend(callback, bucket), context)
end

void_lent(lent::Vector{Any}) = foreach(each -> each.kind == BORROWED && close(each), lent)
drop_lent(lent::Vector{Any}) = (void_lent(lent); empty!(lent))

"""
Ends the validity of lent objects. well: all operations of the step have ended. Otherwise one may go on for a while. Then a later step, or the end
of the context, drops the arrays that it uses.
"""
function end_step(handle::Handle, well::Bool)
    isempty(handle.lent) && isempty(handle.raised) && return nothing
    lock(RAISED_LOCK) do
        well ? drop_lent(handle.lent) : void_lent(handle.lent)
        empty!(handle.raised)
    end
    return nothing
end

function call_hook(cell::Ptr{Cvoid}, group::Ptr{ddp_group}, bucket::Ptr{LibDDP.ddp_bucket}, work::Ptr{Ptr{ddp_work}},
                   error::Ptr{Ptr{ddp_error}})::Int32
    return guarded(cell, error) do callback
        fn, context = function_of(callback)
        result = fn(lend_bucket(callback, context, group, bucket)...)
        pass_on(callback, fn, result, work, "hook", OF_HOOK)
    end
end

function call_bucket(cell::Ptr{Cvoid}, group::Ptr{ddp_group}, bucket::Ptr{LibDDP.ddp_bucket},
                     error::Ptr{Ptr{ddp_error}})::Int32
    return guarded(cell, error) do callback
        fn, context = function_of(callback)
        finished(fn, fn(lend_bucket(callback, context, group, bucket)...), "function of hook_then!")
    end
end

function call_work(cell::Ptr{Cvoid}, next::Ptr{Ptr{ddp_work}}, error::Ptr{Ptr{ddp_error}})::Int32
    return guarded(cell, error) do callback
        pass_on(callback, callback.fn, callback.fn(), next, "continuation", OF_CONTINUATION)
    end
end

function call_buffers(cell::Ptr{Cvoid}, group::Ptr{ddp_group}, buffers::Ptr{Ptr{LibDDP.ddp_tensor}}, count::Csize_t,
                      error::Ptr{Ptr{ddp_error}})::Int32
    return guarded(cell, error) do callback
        fn, context = function_of(callback)
        lent = Handle(BORROWED, Ptr{Cvoid}(group); raised=callback.raised)
        try
            finished(fn, fn(Group(lent), copy(context.buffers)), "buffer hook")  # in the order of registration, as C gives them
        finally
            close(lent)  # C has it only during the call
        end
    end
end

function call_reduced(cell::Ptr{Cvoid}, param::Int32, used::Int32, error::Ptr{Ptr{ddp_error}})::Int32
    return guarded(cell, error) do callback
        fn, context = function_of(callback)
        finished(fn, fn(context.parameters[param + 1], used != 0), "reduced callback")
    end
end

# Addresses of this process, made when the package is loaded.
const ENTRY_HOOK, ENTRY_BUCKET, ENTRY_WORK = Ref{Ptr{Cvoid}}(), Ref{Ptr{Cvoid}}(), Ref{Ptr{Cvoid}}()
const ENTRY_BUFFERS, ENTRY_REDUCED = Ref{Ptr{Cvoid}}(), Ref{Ptr{Cvoid}}()

function make_callbacks()
    ENTRY_HOOK[] = @cfunction(call_hook, Int32, (Ptr{Cvoid}, Ptr{ddp_group}, Ptr{LibDDP.ddp_bucket}, Ptr{Ptr{ddp_work}},
                                                 Ptr{Ptr{ddp_error}}))
    ENTRY_BUCKET[] = @cfunction(call_bucket, Int32, (Ptr{Cvoid}, Ptr{ddp_group}, Ptr{LibDDP.ddp_bucket},
                                                     Ptr{Ptr{ddp_error}}))
    ENTRY_WORK[] = @cfunction(call_work, Int32, (Ptr{Cvoid}, Ptr{Ptr{ddp_work}}, Ptr{Ptr{ddp_error}}))
    ENTRY_BUFFERS[] = @cfunction(call_buffers, Int32, (Ptr{Cvoid}, Ptr{ddp_group}, Ptr{Ptr{LibDDP.ddp_tensor}}, Csize_t,
                                                       Ptr{Ptr{ddp_error}}))
    ENTRY_REDUCED[] = @cfunction(call_reduced, Int32, (Ptr{Cvoid}, Int32, Int32, Ptr{Ptr{ddp_error}}))
    return nothing
end
