# Ctrl-C while a call of libddp's waits.
#
# Julia throws SIGINT on its first thread, at any safe point, also on return from C. Nothing may be thrown through C, nor before
# a call has stored its result. So every call defers signals from begin to end. Meanwhile libddp asks the check below, which ends
# the deferral for a moment and catches what Julia throws. If the program itself has disabled signals, nothing is thrown.

const INTERRUPTED = Ref(false)  # of the first thread, the only one that is asked

was_interrupted() = INTERRUPTED[] && Threads.threadid() == 1

@noinline function interrupt_came()
    try
        Base.sigatomic_end()
        Base.sigatomic_begin()
    catch exception
        # Julia itself has gone back to how signals were deferred before `try`.
        exception isa InterruptException && (INTERRUPTED[] = true)
    end
    return INTERRUPTED[]
end

"The check of ddp_set_interrupt_check."
function ask_interrupted(::Ptr{Cvoid})::Int32
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    came = INTERRUPTED[] || interrupt_came()
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return came
end

"The end of a call that was interrupted: throws InterruptException, caused by libddp's error if there is one."
@noinline function throw_interrupt(status::Int32, error::Ptr{ddp_error})
    INTERRUPTED[] = false
    cause = status == 0 ? nothing : take_error(error, status)
    Base.sigatomic_end()
    cause === nothing && throw(InterruptException())
    try
        throw(cause)
    catch
        throw(InterruptException())
    end
end

function watch_interrupts()
    Threads.threadid() == 1 || return nothing
    entry = @cfunction(ask_interrupted, Int32, (Ptr{Cvoid},))
    LibDDP.ddp_set_interrupt_check(entry, C_NULL, C_NULL, LibDDP.DDP_INTERRUPT_THIS_THREAD, C_NULL)
    return nothing
end
