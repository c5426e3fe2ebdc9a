# Work: an operation under way.

"""
    Work(; timeout=nothing)

An operation under way. It keeps its arrays alive. Forgetting it does not cancel it. The program finishes a `Work()`
itself, with `complete!`.

    wait(work; timeout, yielding)     waits for the end; throws what it failed with
    isdone(work)                      whether it has ended; throws the same
    then(work) do ... end             what happens next
"""
struct Work
    handle::Handle
end

function Work(; timeout=nothing)
    made = Ref{Ptr{ddp_work}}()
    return call(LibDDP.ddp_work_create, milliseconds(timeout), made; keep=() -> new_work(made[]))
end

function new_work(pointer::Ptr{ddp_work}, kept::Vector{Any}=Any[], raised=raised_here())
    return Work(Handle(WORK, pointer; kept=kept, raised=raised === nothing ? Any[] : raised))
end

"Whether the operation has ended. Throws its error if it failed."
isdone(work::Work) = number_from(LibDDP.ddp_work_test, Int32, work.handle) == 1

"""
    wait(work; timeout=nothing, yielding=false)

Waits for the end (seconds; nothing: as long as the group's timeout allows), and throws the operation's error if it
failed. Other tasks of this thread do not run meanwhile, unless `yielding`: then the wait polls and yields to them.
"""
function Base.wait(work::Work; timeout=nothing, yielding::Bool=false)
    bound = milliseconds(timeout)  # 0: none
    yielding || return call(LibDDP.ddp_work_wait, work.handle, bound)
    start = time()
    while !isdone(work)
        bound == 0 || 1000 * (time() - start) < bound ||
            throw(DDPError(LibDDP.DDP_ERROR_TIMEOUT, "the operation did not finish within $bound ms; it goes on"))
        sleep(0.001)
    end
    return nothing
end

"""
    then(function, work) -> Work

Calls function() after `work` has ended without error, on a thread inside a libddp call. If it returns a work, the
result ends with that work. The result throws an exception of function().
"""
function then(fn, work::Work)
    kept = Any[]
    raised = work.handle.raised
    callback = Callback(fn, WeakRef(nothing), raised, kept)
    made = Ref{Ptr{ddp_work}}()
    return install(ENTRY_WORK[], callback, () -> new_work(made[], kept, raised)) do entry, data, destroy, keep
        call(LibDDP.ddp_work_then, work.handle, entry, data, destroy, UInt32(0), made; keep=keep)
    end
end

"Finishes a work of `Work()`: well, or badly with a message."
function complete!(work::Work, error::Union{AbstractString,Nothing}=nothing)
    status = error === nothing ? LibDDP.DDP_OK : LibDDP.DDP_ERROR_CALLBACK
    call(LibDDP.ddp_work_complete, work.handle, status, error === nothing ? nothing : String(error))
    return nothing
end

Base.show(io::IO, work::Work) = print(io, isopen(work.handle) ? "Work()" : "Work(passed on)")
