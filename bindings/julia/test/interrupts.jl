# A Ctrl-C that comes at the end of a call that has done well loses nothing. tests/bindings/julia has those that end a wait.
group = alone()

"f throws the Ctrl-C that its call has noticed too late to end."
function too_late(f)
    DDP.INTERRUPTED[] = true
    @test_throws InterruptException f()
    @test !DDP.INTERRUPTED[]
end

"The objects that f left to the garbage collector."
function collected(f)
    for _ in 1:3
        GC.gc()
        DDP.sweep()
    end
    before = copy(DDP.GARBAGE)  # works that never end
    f()
    GC.gc()
    return setdiff(DDP.GARBAGE, before)
end

@testset "what was made is garbage, not lost" begin
    array = ones(Float32, 3)
    works = collected(() -> too_late(() -> allreduce!(group, array; async=true)))
    keeps(work) = any(kept -> kept isa Tuple && any(memory -> memory.root === array, kept), work.kept)
    @test any(keeps, filter(handle -> handle.kind == DDP.WORK, works))
    for (make, kind) in ((() -> Context(group), DDP.CONTEXT), (() -> split(group, 0), DDP.GROUP), (() -> round_robin([group]), DDP.GROUP),
                         (() -> Store("tcp://127.0.0.1:0"; server=true), DDP.STORE), (() -> group.store, DDP.STORE),
                         (() -> Work(), DDP.WORK))
        @test kind in [handle.kind for handle in collected(() -> too_late(make))]
    end
end

@testset "what C has taken over stays" begin
    made, seen = Work(; timeout=20), []
    too_late(() -> then(() -> (push!(seen, "continuation"); nothing), made))
    ctx = Context(group)
    too_late(() -> register!(ctx, "w", zeros(Float32, 3), zeros(Float32, 3)))
    too_late(() -> register_buffer!(ctx, "state", zeros(Float32, 3)))
    @test length(ctx.parameters) == length(ctx.buffers) == 1 && length(ctx.handle.kept) == 2
    commit!(ctx)
    too_late(() -> set_hook!((group, bucket) -> (push!(seen, "hook"); nothing), ctx))
    averager = length(ctx.handle.dependents)
    too_late(() -> Averager(ctx, 1))
    @test length(ctx.handle.dependents) == averager + 1
    GC.gc()
    DDP.sweep()
    grad_ready(ctx, ctx.parameters[1])
    finalize!(ctx)
    complete!(made)
    @test seen == ["hook", "continuation"]
    close(ctx)
end

if Threads.nthreads() > 1
    @testset "a Ctrl-C while garbage is freed" begin
        ccall(:jl_exit_on_sigint, Cvoid, (Cint,), 0)  # as in a REPL
        work = barrier(group; async=true).handle
        wait(DDP.Work(work))
        held = Threads.Atomic{Bool}(false)
        Threads.@threads for i in 1:2
            if i == 2
                lock(DDP.OWNERS_LOCK) do
                    held[] = true
                    Libc.systemsleep(0.2)
                    ccall(:kill, Cint, (Cint, Cint), getpid(), 2)
                    Libc.systemsleep(0.5)
                end
            else
                while !held[]
                    Libc.systemsleep(0.01)
                end
                DDP.discard(work)
                try
                    DDP.sweep()  # waits for the other thread, with the garbage in its hands
                    sleep(20)
                catch error
                    @test error isa InterruptException
                end
            end
        end
        @test work.freed[] == 1
    end
end
close(group)
