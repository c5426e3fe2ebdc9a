# The program's own entries in the record of this process (ddp/record.h).

"""
    DDP.mark(f, name)

Runs `f()`, and shows it in traces: `DDP.mark("forward") do ... end`. Marks nest. A mark belongs to a thread: `f` may not switch to
another one.
"""
function mark(f, name::AbstractString)
    call(LibDDP.ddp_mark_begin, String(name))
    try
        return f()
    finally
        call(LibDDP.ddp_mark_end)
    end
end

"""
    DDP.set_workload(; samples=0, steps=0)

Says how many samples this rank takes in a step, and how many steps the run has; 0: unknown. For `ddprun --status`.
"""
set_workload(; samples::Integer=0, steps::Integer=0) = call(LibDDP.ddp_set_workload, Int64(samples), Int64(steps))

"""
    DDP.set_blame_signal(signal)

The signal that this process sends itself when a group breaks with an error that names its rank; 0: none.
"""
set_blame_signal(signal::Integer) = call(LibDDP.ddp_set_blame_signal, Int32(signal))
