# How C functions are called.
#
# A thread inside a C function holds up the garbage collection of all others, unless it says that it touches nothing of
# Julia's meanwhile. Calls that may wait for other ranks or threads say so (gc_safe): their arguments are plain pointers and
# numbers by then, of the very types that the function takes, so that nothing is converted inside. Callbacks take it back
# (callbacks.jl).

@inline function gc_safe(f::F, args::Vararg{Any,N}) where {F,N}
    state = ccall(:jl_gc_safe_enter, Int8, ())
    result = f(args...)
    ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
    return result
end

# The form of an argument that C gets. The argument itself is preserved by the caller.
@inline raw(x::Union{Int32,Int64,UInt32,UInt64,Float64,Ptr,Cstring}) = x
@inline raw(x::Base.RefValue{T}) where {T} = Base.unsafe_convert(Ptr{T}, x)
@inline raw(x::Vector{T}) where {T} = pointer(x)
@inline raw(x::String) = Base.unsafe_convert(Cstring, x)
@inline raw(::Nothing) = Cstring(C_NULL)

nothing_made() = nothing

"""
Calls f(pointer, args..., error), which may wait, about an object; throws what it fails with. When it has not failed, the result is what
keep() makes of it, before a Ctrl-C is thrown: nothing else would know any more what C made.
"""
function call(f::F, handle::Handle, args::Vararg{Any,N}; keep::K=nothing_made) where {F,N,K}
    error = Ref{Ptr{ddp_error}}(C_NULL)
    Base.sigatomic_begin()
    status = GC.@preserve args error begin
        plain = map(raw, args)
        report = raw(error)
        pointer = enter(handle)
        result = gc_safe(f, pointer, plain..., report)
        leave(handle)
        result
    end
    status == 0 || fail(status, error[], handle)
    made = keep()
    was_interrupted() && throw_interrupt(status, error[])
    Base.sigatomic_end()
    return made
end

"Calls f(args..., error), about nothing that is there yet."
function call(f::F, args::Vararg{Any,N}; keep::K=nothing_made) where {F,N,K}
    error = Ref{Ptr{ddp_error}}(C_NULL)
    Base.sigatomic_begin()
    status = GC.@preserve args error begin
        plain = map(raw, args)
        report = raw(error)
        gc_safe(f, plain..., report)
    end
    status == 0 || fail(status, error[])
    made = keep()
    was_interrupted() && throw_interrupt(status, error[])
    Base.sigatomic_end()
    return made
end

"Asks f(pointer, args...), which only reads."
@inline function ask(f::F, handle::Handle, args::Vararg{Any,N}) where {F,N}
    pointer = enter(handle)
    result = f(pointer, args...)
    leave(handle)
    return result
end

const RAISED_LOCK = ReentrantLock()

@noinline function fail(status::Int32, error::Ptr{ddp_error})
    was_interrupted() && throw_interrupt(status, error)
    failure = take_error(error, status)
    Base.sigatomic_end()
    throw(failure)
end

"Throws what a call failed with: if it was a callback's exception, that exception, caused by libddp's error."
@noinline function fail(status::Int32, error::Ptr{ddp_error}, handle::Handle)
    was_interrupted() && throw_interrupt(status, error)
    failure = take_error(error, status)
    Base.sigatomic_end()
    raised = lock(RAISED_LOCK) do
        isempty(handle.raised) && return nothing
        first = handle.raised[1]
        empty!(handle.raised)
        return Some(first)
    end
    raised === nothing && throw(failure)
    try
        throw(failure)
    catch
        throw(something(raised))
    end
end

"Options as libddp's own defaults with these fields changed."
function options(init::F, ::Type{T}, fields::NamedTuple) where {F,T}
    defaults = Ref{T}()
    init(defaults, sizeof(T))
    return T((haskey(fields, name) ? fields[name] : getfield(defaults[], name) for name in fieldnames(T))...)
end

"Seconds as libddp takes times: 0 for the default, never rounded down to it."
milliseconds(::Nothing) = Int64(0)
function milliseconds(seconds::Real)
    0 < seconds < 1e9 || throw(ArgumentError("timeout: a time of $seconds s is not positive and finite"))
    return max(Int64(1), round(Int64, 1000 * seconds))
end

"Text for a struct's field; the caller preserves it."
text(what, ::Nothing) = Cstring(C_NULL)
function text(what, given::String)
    occursin('\0', given) && throw(ArgumentError("$what: a text must not hold a NUL"))
    return Base.unsafe_convert(Cstring, given)
end
