# A rank in Julia that waits: tests/dist/interrupt/worker.c tells how it is called and what it prints.
#
# InterruptException must come out of the call, caused by libddp's error.
using DDP

const TIMEOUT = 60.0

name(error::DDPError) = replace(String(DDP.status_name(error.status)), "DDP_ERROR_" => "")
name(error) = string(typeof(error))

function tell(word, error)
    rank = error isa DDPError && error.rank !== nothing ? error.rank : -1
    println(word, " ", time_ns() / 1e9, " ", name(error), " ", rank, " ", error isa DDPError ? error.message : error)
    flush(stdout)
end

"Makes the call that waits."
function waiting(call)
    println("waiting")
    flush(stdout)
    try
        call()
    catch error
        causes = Base.catch_stack()
        return error isa InterruptException ? tell("interrupted", causes[1][1]) : tell("error", error)
    end
    Base.error("the call did not wait")
end

function use_store(uri)
    store = Store(uri; server=startswith(uri, "tcp:"), timeout=TIMEOUT)
    waiting(() -> get(store, "nobody sets this"))
    store["key"] = "value"
    println(String(store["key"]) == "value" ? "the store works" : "the store is broken")
end

function sleep_until_broken(group)
    for _ in 1:TIMEOUT / 0.02
        try
            DDP.check(group)
        catch error
            return tell("error", error)
        end
        sleep(0.02)
    end
end

function finalize(group, sleeps)
    context = Context(group)
    w = register!(context, "w", zeros(Float32, 100), zeros(Float32, 100))
    commit!(context)
    if sleeps
        sleep_until_broken(group)
    else
        grad_ready(context, w)
        waiting(() -> finalize!(context))
    end
    close(context)
end

function main(case, rank, world, uri, backend)
    ccall(:alarm, Cuint, (Cuint,), 100)
    case == "store" && return use_store(uri)
    join() = Group(; rank=parse(Int, rank), world_size=parse(Int, world), init_method=uri, backend=backend, timeout=TIMEOUT)
    case == "join" && return waiting(join)
    group = join()
    data = zeros(Float32, 100)
    sleeps = parse(Int, rank) == parse(Int, world) - 1
    if case == "finalize"
        finalize(group, sleeps)
    elseif sleeps
        sleep_until_broken(group)
    elseif case == "barrier"
        waiting(() -> barrier(group))
    elseif case == "allreduce"
        waiting(() -> allreduce!(group, data))
    else
        work = allreduce!(group, data; async=true)
        waiting(() -> wait(work; timeout=case == "timed" ? TIMEOUT : nothing))
    end
    close(group)
end

# As in a REPL: otherwise Julia ends with the first SIGINT.
ccall(:jl_exit_on_sigint, Cvoid, (Cint,), 0)
main(ARGS...)
