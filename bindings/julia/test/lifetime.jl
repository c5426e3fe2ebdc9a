# Every object that is made is freed, and a garbage collector may run at any moment.
group = alone()

function step(ctx, gradient)
    step_begin!(ctx)
    foreach(parameter -> put!(ctx, parameter, gradient), ctx.parameters)
    finalize!(ctx)
end

function contexts(count)
    gradient = ones(Float32, 100)
    for i in 1:count
        ctx = Context(group)
        register!(ctx, "w", zeros(Float32, 100))
        register!(ctx, "a name that is long enough for memory of its own"; size=100)
        commit!(ctx)
        if i % 4 == 0
            set_hook!((group, bucket) -> allreduce!(group, bucket.buffer; async=true), ctx)
            hook_then!((group, bucket) -> isopen(ctx), ctx)  # a circle
            step(ctx, gradient)
        end
        i % 2 == 0 && close(ctx)
    end
end

function settle()
    for _ in 1:3
        GC.gc()
        DDP.sweep()
    end
    return resident_kib()
end

# The objects that the package remembers.
count_known() = length.((DDP.CALLBACKS, DDP.GARBAGE, DDP.OPEN, DDP.OWNERS))

# A leak grows in every round: of 100 bytes a context by 976 KiB. Julia's heap itself grows now and then.
@testset "ten thousand contexts" begin
    contexts(10000)
    known = nothing
    grown = map(1:3) do _
        before, known = settle(), count_known()
        contexts(10000)
        settle() - before
    end
    @test minimum(grown) < 512
    @test all(count_known() .<= known)
end

@testset "errors and works" begin
    function rounds(count)
        array = zeros(Float32, 100)
        for _ in 1:count
            try
                commit!(Context(group))
            catch
            end
            wait(then(() -> nothing, allreduce!(group, array; async=true)))
            allreduce!(group, zeros(Float32, 100); async=true)
            group.store["key"] = "value"^100
            group.store["key"]
        end
    end
    rounds(500)
    before, known = settle(), count_known()
    rounds(2000)
    @test settle() - before < 2048
    @test all(count_known() .<= known)
end

@testset "collecting during training changes nothing" begin
    function train(collecting)
        weights = [ones(Float32, 500) for _ in 1:8]
        collector = @async while collecting[]
            GC.gc(false)
            yield()
        end
        Context(group; bucket_cap=2000) do ctx
            for (i, weight) in enumerate(weights)
                register!(ctx, "w$i", weight)
            end
            commit!(ctx)
            set_hook!(ctx) do group, bucket
                collecting[] && GC.gc(bucket.is_last)  # all generations once a step, the young one elsewhere
                then(allreduce!(group, bucket.buffer; async=true)) do
                    collecting[] && GC.gc(false)
                    nothing
                end
            end
            for _ in 1:20
                step_begin!(ctx)
                foreach((parameter, weight) -> put!(ctx, parameter, weight .* 0.5f0), ctx.parameters, weights)
                collecting[] && GC.gc(false)
                finalize!(ctx)
                foreach((parameter, weight) -> weight .-= 0.1f0 .* grad_view(ctx, parameter), ctx.parameters, weights)
                yield()
            end
        end
        collecting[] = false
        wait(collector)
        return reduce(vcat, weights)
    end
    @test train(Ref(false)) == train(Ref(true))
end

if Threads.nthreads() > 1
    @testset "threads" begin
        # One waits in C while another collects garbage: the collection does not wait for it.
        waiting = Work(; timeout=20)
        collected = Ref(0)
        start = time()
        Threads.@threads for i in 1:2
            if i == 1
                wait(waiting)
            else
                sleep(0.2)
                for _ in 1:5
                    GC.gc()
                    collected[] += 1
                end
                complete!(waiting)
            end
        end
        @test collected[] == 5 && time() - start < 15

        # Threads announce at once, with garbage and hooks; one closes in the middle. That breaks the group if a hook is
        # running, so each round has a group of its own.
        for round in 1:30
            group = alone()
            ctx = committed(group, 64; bucket_cap=48)
            round % 2 == 0 && set_hook!((group, bucket) -> allreduce!(group, copy(bucket.buffer)), ctx)
            Threads.@threads for part in 1:4
                try
                    for i in part:4:64
                        grad_ready(ctx, ctx.parameters[i])
                        zeros(1000)
                    end
                    part == 4 && round % 3 == 0 && close(ctx)
                catch error
                    error isa DDPError || rethrow()
                end
            end
            round % 3 == 0 || finalize!(ctx)
            round % 5 == 0 && GC.gc()
            close(ctx)
            close(group)
        end
        @test true
    end
end
close(group)
