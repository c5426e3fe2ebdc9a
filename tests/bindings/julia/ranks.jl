# Everything that needs several ranks, against plain Julia. ddprun starts this file on 2 or more ranks; all run the same tests in
# the same order.
include(joinpath(DDP_SOURCE, "bindings", "julia", "test", "support.jl"))

# The numbers that a rank gives: whole ones, which add without rounding.
values_of(rank, size=1000) = Float32[(7 * i + 13 * rank) % 32 for i in 0:(size - 1)]

const group = Group(; timeout=30)
const rank, world = group.rank, group.world_size
const everyones = reduce(hcat, values_of(r) for r in 0:(world - 1))  # a column for each rank
const sums, means = vec(sum(everyones; dims=2)), vec(sum(everyones; dims=2)) ./ world

function make(on=group; options...)
    ctx = Context(on; bucket_cap=2000, first_bucket_cap=2000, options...)
    for i in 0:3
        register!(ctx, "p$i", fill(Float32(rank), 1000), i % 2 == 1 ? zeros(Float32, 1000) : nothing)
    end
    commit!(ctx)
    return ctx
end
make(f, on; options...) = DDP.closing(f, make(on; options...))
result(ctx, parameter) = parameter.grad === nothing ? grad_view(ctx, parameter) : parameter.grad

function announce(ctx, parameter)
    parameter.grad === nothing && return put!(ctx, parameter, values_of(rank))
    parameter.grad .= values_of(rank)
    return grad_ready(ctx, parameter)
end

function train(ctx, steps=3, expected=means)
    for _ in 1:steps
        step_begin!(ctx)
        foreach(parameter -> announce(ctx, parameter), ctx.parameters)
        finalize!(ctx)
        @test all(result(ctx, parameter) ≈ expected for parameter in ctx.parameters)
    end
end

@testset "collectives" begin
    for (op, expected) in ((:sum, sums), (max, vec(maximum(everyones; dims=2))), (:min, vec(minimum(everyones; dims=2))))
        recv = values_of(rank)
        allreduce!(group, recv, op)
        @test recv == expected
    end
    recv = zeros(Float32, 1000)
    allreduce!(group, recv, DDP.AVG; send=values_of(rank))
    @test recv ≈ means
    gathered = zeros(Float32, 1000, world)
    allgather!(group, gathered, view(values_of(rank), :))
    @test gathered == everyones
    part = zeros(Float32, 500)
    reduce_scatter!(group, part, repeat(values_of(rank)[1:500], world), +)
    @test part == sums[1:500]
    recv = zeros(Int32, 7, world)
    all_to_all!(group, recv, Int32.(reshape(0:7world-1, 7, world)) .+ Int32(1000rank))
    @test recv == Int32[1000of + 7rank + i for i in 0:6, of in 0:world-1]
    counts_to, counts_of = [rank + 2to for to in 0:world-1], [of + 2rank for of in 0:world-1]
    send = reduce(vcat, [fill(Float32(10rank + to), rank + 2to) for to in 0:world-1])
    recv = zeros(Float32, sum(counts_of))
    wait(all_to_all!(group, recv, send; recv_counts=counts_of, send_counts=counts_to, async=true))
    @test recv == reduce(vcat, [fill(Float32(10of + rank), of + 2rank) for of in 0:world-1])
    @test_throws ArgumentError all_to_all!(group, recv, send; recv_counts=counts_of)
    @test_throws ArgumentError all_to_all!(group, zeros(Float32, world + 1), zeros(Float32, world + 1))
    sent = values_of(rank)
    bcast!(group, sent; root=1)
    @test sent == values_of(1)
    works = [allreduce!(group, values_of(rank); async=true) for _ in 1:4]
    arrays = [values_of(rank) for _ in 1:4]
    append!(works, [allreduce!(group, array; async=true) for array in arrays])
    GC.gc()
    foreach(wait, works[1:6])
    foreach(work -> wait(work; yielding=true), works[7:8])
    @test all(==(sums), arrays)
    told = environment()
    @test (told.rank, told.world_size, told.launcher) == (rank, world, "ddprun")
end

@testset "a callback runs where a forgotten work is looked after" begin
    @noinline forget(f) = (f(); nothing)
    seen = []
    rank == 1 && sleep(0.3)
    after = then(() -> (push!(seen, rank); nothing), allreduce!(group, values_of(rank); async=true))
    forget(() -> allreduce!(group, values_of(rank); async=true))  # does not end before the callback has run
    GC.gc()
    rank == 0 && sleep(1)
    barrier(group)
    wait(after)
    @test seen == [rank]
end

@testset "split and round robin" begin
    pair = split(group, rank ÷ 2; key=-rank)
    members = [r for r in (world - 1):-1:0 if r ÷ 2 == rank ÷ 2]
    @test (pair.rank, pair.world_size) == (findfirst(==(rank), members) - 1, length(members))
    @test split(group, rank).world_size == 1
    @test split(group, -1) === nothing
    turns = round_robin([split(group, 0), split(group, 0)])
    GC.gc()
    DDP.sweep()  # the two are kept alive by the one made of them
    make(train, turns)
    close(turns)
end

@testset "mean and initial values" begin
    make(group) do ctx
        @test iszero(ctx.parameters[1].data)
        train(ctx)
        figures = stats(ctx)
        @test (figures.steps, figures.synced_steps, figures.param_count) == (3, 3, 4)
        @test sum(bucket_sizes(ctx)) == figures.param_bytes
        @test ready_order(ctx) == ctx.parameters
        @test 0 <= param_bucket(ctx, ctx.parameters[1]) < bucket_count(ctx)
        saved = plan(ctx)
        request_rebuild!(ctx)
        make(group; rebuild=false) do other
            adopt_plan!(other, saved)
            train(other)
            @test plan(other) == saved
        end
    end
end

@testset "in place" begin
    weights, gradients = fill(Float32(rank), 2, 2, 3), zeros(Float32, 14)
    DDP.closing(Context(group)) do ctx
        layers = register_slices!(ctx, "layer", weights, reshape(view(gradients, 1:12), 2, 2, 3); in_place=true)
        register!(ctx, "bias", nothing, view(gradients, 13:14); in_place=true)
        commit!(ctx)
        @test iszero(layers[2].data) && [layer.name for layer in layers] == ["layer[0]", "layer[1]", "layer[2]"]
        for _ in 1:3
            step_begin!(ctx)
            gradients .= values_of(rank, 14)
            foreach(parameter -> grad_ready(ctx, parameter), reverse(ctx.parameters))
            finalize!(ctx)
            @test gradients ≈ means[1:14]
            @test vec(layers[3].grad) ≈ means[9:12]
        end
        @test bucket_count(ctx) == 1
    end
end

@testset "no_sync, async end, discard" begin
    make(group) do ctx
        foreach(parameter -> fill!(result(ctx, parameter), 0), ctx.parameters)
        step() = (foreach(parameter -> (result(ctx, parameter) .+= values_of(rank); grad_ready(ctx, parameter)),
                          ctx.parameters); finalize!(ctx))
        no_sync(step, ctx)
        step()
        @test all(result(ctx, parameter) ≈ 2 .* means for parameter in ctx.parameters)
        step_begin!(ctx)
        foreach(parameter -> announce(ctx, parameter), ctx.parameters)
        finalize_async!(ctx)
        for parameter in reverse(ctx.parameters)
            wait_param(ctx, parameter)
            @test result(ctx, parameter) ≈ means
        end
        finalize!(ctx)
        grad_ready(ctx, ctx.parameters[1 + rank % 2])
        discard!(ctx)
        train(ctx, 1)
    end
end

@testset "threads" begin
    make(group) do ctx
        for _ in 1:5
            step_begin!(ctx)
            Threads.@threads for parameter in ctx.parameters
                announce(ctx, parameter)
            end
            finalize!(ctx)
            @test all(result(ctx, parameter) ≈ means for parameter in ctx.parameters)
        end
    end
end

@testset "sparse and factors" begin
    Context(group; reduction=:sum) do ctx
        sparse = register!(ctx, "sparse"; size=(2, 10), sparse=true)
        factored = register!(ctx, "factored"; size=(40, 30), factored=true)
        commit!(ctx)
        grad_ready_sparse(ctx, sparse, [rank + 1, 10], ones(Float32, 2, 2))
        factors(r) = reshape(values_of(r, 80), 40, 2), reshape(values_of(r, 60), 30, 2)
        grad_ready_factors(ctx, factored, factors(rank)...)
        finalize!(ctx)
        rows, each = sparse_gradient(ctx, sparse)
        @test rows == [1:world; 10] && each[1, :] == [ones(world); world]
        @test grad_view(ctx, factored) == sum(left * right' for (left, right) in factors.(0:(world - 1)))
    end
end

@testset "gradients of another type" begin
    Context(group) do ctx
        values, grad = fill(UInt16(0x3f80 + rank), 3), zeros(Float32, 3)
        viewed = register!(ctx, "viewed", copy(values); dtype=DDP.BF16, grad_dtype=Float32)
        given = register!(ctx, "given", values, grad; dtype=DDP.BF16, grad_dtype=Float32)
        commit!(ctx)
        @test values == fill(0x3f80, 3) && (given.dtype, given.grad_dtype) == (DDP.BF16, DDP.F32)
        mine = Float32[1, 2, 3] .+ Float32(2.0^-12 * rank)
        put!(ctx, viewed, mine)
        grad .= mine
        grad_ready(ctx, given)
        finalize!(ctx)
        mean = Float32[1, 2, 3] .+ Float32(2.0^-12 * (world - 1) / 2)
        @test grad ≈ mean rtol = 2e-7
        @test grad_view(ctx, viewed) ≈ mean rtol = 2e-7
    end
end

@testset "share of a batch" begin
    Context(group; reduction=:weighted_mean) do ctx
        weight = register!(ctx, "w", zeros(Float32, 3), zeros(Float32, 3))
        share_batch!(ctx, 24world; multiple=4)
        commit!(ctx)
        @test batch_share(ctx) == 24rank+1:24rank+24
        for _ in 1:20
            mine = batch_share(ctx)
            set_weight!(ctx, length(mine))
            step_begin!(ctx)
            weight.grad .= sum(mine) / length(mine)
            grad_ready(ctx, weight)
            finalize!(ctx)
            @test weight.grad ≈ fill((24world + 1) / 2, 3) rtol = 1e-6
            batch_time!(ctx, length(mine) * (rank == 0 ? 1e-3 : 2e-6))
        end
        @test world == 1 || rank > 0 || batch_share(ctx) == 1:4  # the least that it can have
    end
end

@testset "participation" begin
    make(group; find_unused=true, reduction=:weighted_mean) do ctx
        used = ctx.parameters[2]
        set_weight!(ctx, rank + 1)
        step_begin!(ctx)
        announce(ctx, used)
        mark_unused!(ctx, ctx.parameters[3:4])
        finalize!(ctx)
        @test used.grad ≈ everyones * (1:world) ./ sum(1:world)
        @test [param_used(ctx, parameter) for parameter in ctx.parameters] == [false, true, false, false]
    end
    make(group; join=true) do ctx
        for _ in 0:rank
            step_begin!(ctx)
            foreach(parameter -> announce(ctx, parameter), ctx.parameters)
            finalize!(ctx)
        end
        join!(ctx)
    end
    make(group) do ctx
        set_frozen!(ctx, ctx.parameters[1:1])
        skip!(ctx, rank == 0 ? ctx.parameters[2:2] : []; authority=0)
        @test [skipped(ctx, parameter) for parameter in ctx.parameters] == [false, true, false, false]
        step_begin!(ctx)
        foreach(parameter -> announce(ctx, parameter), ctx.parameters[3:4])
        finalize!(ctx)
        @test result(ctx, ctx.parameters[4]) ≈ means
    end
end

@testset "hooks" begin
    function sums_twice(group, bucket)
        @test bucket.op == DDP.AVG && group.rank == rank
        flat = bucket.buffer
        then(allreduce!(group, flat; async=true)) do
            GC.gc(false)
            flat ./= 2
            allreduce!(group, flat; async=true)  # a continuation may go on with another
        end
    end
    function in_place(group, bucket)
        allreduce!(group, bucket.buffer, bucket.op)
        foreach(gradient -> gradient.array .+= 1, bucket.gradients)
    end
    function in_double(group, bucket)
        wide = Float64.(bucket.buffer)
        set_buffer!(bucket, wide)
        return allreduce!(group, wide, :avg; async=true)
    end
    make(group) do ctx
        for (hook, expected) in ((sums_twice, means .* (world^2 / 2)), (in_place, means .+ 1), (in_double, means), (nothing, means))
            set_hook!(hook, ctx)
            train(ctx, 2, expected)
        end
        @test hook_name(ctx) == "allreduce"
        reduced, after = [], []
        use_hook!(ctx, "fp16")
        hook_then!((group, bucket) -> push!(after, bucket.index), ctx)
        set_reduced_callback!((parameter, used) -> push!(reduced, (parameter.name, used)), ctx)
        train(ctx, 1, Float32.(Float16.(means)))
        @test sort(reduced) == [("p$i", true) for i in 0:3]
        @test after == 0:(bucket_count(ctx) - 1)
        use_hook!(ctx, "powersgd"; rank=1, start=2, warm_start=true)
        load_hook_state!(ctx, hook_state(ctx))
        compress_hook!(ctx, DDP.BF16)
        @test occursin("powersgd", hook_name(ctx))
        use_hook!(ctx, "post_local_sgd"; start=5)
        average_parameters!(ctx)
    end
end

# Values after some steps of momentum. owner: nothing: all ranks update all.
function train_with_momentum(owner)
    Context(group; shard=owner !== nothing, bucket_cap=2000) do ctx
        for i in 0:3
            register!(ctx, "p$i", fill(Float32(rank), 100, 10), i % 2 == 1 ? zeros(Float32, 100, 10) : nothing)
            owner === nothing || set_owner!(ctx, ctx.parameters[end], owner; cost=owner === :whole ? 3 : 0)
        end
        commit!(ctx)
        owned = owner === nothing ? [] : DDP.pieces(ctx)
        @test all(length(piece.value) == length(piece.range) for piece in owned)
        speeds = [zero(piece.value) for piece in owned]
        all_speeds = [zeros(Float32, 100, 10) for _ in 1:4]
        update!(speed, value, gradient) = (speed .= 0.9f0 .* speed .+ gradient; value .-= 0.01f0 .* speed)
        for _ in 1:4
            step_begin!(ctx)
            foreach(parameter -> put!(ctx, parameter, reshape(values_of(rank), 100, 10)), ctx.parameters)
            finalize!(ctx)
            foreach((speed, piece) -> update!(speed, piece.value, piece.gradient), speeds, owned)
            owner === nothing && foreach((speed, p) -> update!(speed, p.data, result(ctx, p)), all_speeds, ctx.parameters)
            owner === nothing || publish!(ctx)
            owner === nothing || foreach(parameter -> wait_value(ctx, parameter), ctx.parameters)
        end
        return [copy(parameter.data) for parameter in ctx.parameters]
    end
end

@testset "shards" begin
    expected = train_with_momentum(nothing)
    for owner in (:elements, :whole, :replicated)
        @test train_with_momentum(owner) == expected
    end
    make(group; shard=true) do ctx
        refused(() -> set_owner!(ctx, ctx.parameters[1], :half), "owner", ":elements")
        fails(() -> set_owner!(ctx, ctx.parameters[1], :elements; cost=2), C.DDP_ERROR_INVALID_ARGUMENT, "which is for :whole")
        foreach(parameter -> announce(ctx, parameter), ctx.parameters)
        finalize!(ctx)
        fails(() -> foreach(parameter -> announce(ctx, parameter), ctx.parameters), C.DDP_ERROR_INVALID_STATE, "call publish! after the optimizer")
        publish!(ctx)
    end
    make(group) do ctx
        @test isempty(DDP.pieces(ctx))
        fails(() -> publish!(ctx), C.DDP_ERROR_INVALID_STATE, "shard=true")
    end
end

@testset "buffers and averager" begin
    Context(group) do ctx
        weight, running = fill(Float32(rank), 5), fill(Float32(rank), 5)
        register!(ctx, "w", weight, zeros(Float32, 5))
        register_buffer!(ctx, "means", running)
        commit!(ctx)
        @test iszero(running)
        lent = []
        set_buffer_hook!((group, buffers) -> (push!(lent, group); allreduce!(group, buffers[1], :max)), ctx)
        averager = Averager(ctx, 2)
        averaged = map(1:3) do _
            step_begin!(ctx)
            grad_ready(ctx, ctx.parameters[1])
            finalize!(ctx)
            running .= rank
            weight .= rank
            step!(averager)
        end
        @test averaged == [world, 0, world] && averager.steps == 3
        averager.steps = 10
        @test averager.steps == 10
        @test weight ≈ fill((world - 1) / 2, 5)
        set_outer!(averager; learning_rate=0.5, momentum=0.5)
        weight .= 4
        @test step!(averager) == world  # the outer parameters
        state = averager_state(averager)
        for _ in 1:2
            load_averager_state!(averager, state)
            @test averager.steps == 11
            averager.steps = 12
            weight .= 2
            @test step!(averager) == world && all(==(2.5f0), weight)
        end
        # A fragment leaves, travels for a step as an outer gradient, and is mixed with what is there then.
        set_outer!(averager, :sgd; learning_rate=1, momentum=0, delay=1, alpha=0.5, sent_dtype=DDP.U8)
        set_fragments!(averager, [0])
        averager.steps = 12
        weight .= 4
        @test step!(averager) == world && step!(averager) == 0
        weight .= 2
        @test step!(averager) == 0
        weight .= 1
        @test step!(averager) == world && all(==(1.5f0), weight)
        go_back!(averager)
        @test all(==(2f0), weight) && averager.steps == 16
        set_outer!(averager, :slowmo; learning_rate=1, momentum=0, inner_learning_rate=0.1)
        @test_throws ArgumentError set_outer!(averager, :adam)
        @test all(==(rank), running)
        step_begin!(ctx)
        @test all(==(world - 1), running)
        fails(() -> barrier(lent[end]), C.DDP_ERROR_INVALID_STATE, "closed")
    end
end

@testset "put!" begin
    make(group) do ctx
        for add in (false, true), _ in 1:2  # what the step before has left there does not matter
            no_sync(ctx) do
                foreach(parameter -> put!(ctx, parameter, values_of(rank); add=add), ctx.parameters)
                finalize!(ctx)
            end
            foreach(parameter -> put!(ctx, parameter, view(values_of(rank), :); add=add), ctx.parameters)
            finalize!(ctx)
            @test all(result(ctx, parameter) ≈ (1 + add) .* means for parameter in ctx.parameters)
        end
    end
end

@testset "a check finds what is written late" begin
    ctx = make(split(group, 0); check=true, check_interval=1)
    train(ctx)
    late = fails(C.DDP_ERROR_INVALID_STATE, "p2") do  # the other rank may hear of it while it still announces
        foreach(parameter -> announce(ctx, parameter), ctx.parameters)
        rank == 1 && (grad_view(ctx, ctx.parameters[3])[5] += 1)
        finalize!(ctx)
    end
    @test (late.rank, late.parameter, late.step) == (1, 2, 3)
    close(ctx)
end

@testset "a step with NaN is skipped" begin
    make(split(group, 0); skip_nonfinite=true, verify_interval=1) do ctx
        train(ctx, 1)
        bad = fails(C.DDP_ERROR_NONFINITE, "p2") do
            for parameter in ctx.parameters
                values = values_of(rank)
                rank == 1 && parameter.index == 2 && (values[6] = NaN)
                put!(ctx, parameter, values)
            end
            finalize!(ctx)
        end
        @test (bad.rank, bad.parameter, bad.step) == (1, 2, 1)
        train(ctx, 1)
    end
end

@testset "a hook that throws breaks the context" begin
    ctx = make(split(group, 0))
    set_hook!(ctx) do group, bucket
        rank == 0 && bucket.index == 1 && throw(KeyError("hook of rank 0"))
        allreduce!(group, bucket.buffer, bucket.op; async=true)
    end
    barrier(group)  # nobody is still in commit! when the group breaks
    caught = try
        train(ctx, 1)
    catch error
        error
    end
    if rank == 0
        @test caught == KeyError("hook of rank 0")
    else
        @test caught isa DDPError
        @test (caught.status, caught.rank, caught.bucket) == (C.DDP_ERROR_CALLBACK, 0, 1)
    end
    set_group!(ctx, split(group, 0))
    set_hook!(nothing, ctx)
    train(ctx)
    close(ctx)
end

@testset "a step that fails keeps the arrays of its works" begin  # their operations may go on
    given = WeakRef[]
    function hook(group, bucket)
        half = bucket.buffer ./ 2
        push!(given, WeakRef(half))
        return allreduce!(group, bucket.buffer, bucket.op; send=half, async=true)
    end
    collect_garbage() = foreach(_ -> GC.gc(), 1:3)
    is_there(array) = array.value !== nothing  # in a function, as @test looks at the parts of an expression, and may keep them
    ctx = make(split(group, 0))
    set_hook!(hook, ctx)
    barrier(group)  # nobody is still in commit when the group breaks
    rank > 0 && barrier(group)  # rank 0 fails before the others begin
    fails(C.DDP_ERROR_MISSING_GRADIENT, "p0") do
        put!(ctx, ctx.parameters[4], values_of(rank))
        finalize!(ctx)
    end
    if rank == 0
        collect_garbage()
        @test is_there(given[1])
        barrier(group)
    end
    set_group!(ctx, split(group, 0))
    train(ctx, 1, means ./ 2)
    collect_garbage()
    @test !any(is_there, given)
    close(ctx)
end

@testset "join lets go of past steps" begin  # of what the hook gave to their operations; the last rank is the one with inputs
    given, alive, steps = WeakRef[], -1, 20
    make(group; join=true) do ctx
        set_hook!(ctx) do group, bucket
            copied = copy(bucket.buffer)
            push!(given, WeakRef(copied))
            if bucket.step == steps - 1 && bucket.is_last
                foreach(_ -> GC.gc(), 1:3)
                alive = count(array -> array.value !== nothing, given)
            end
            return allreduce!(group, copied, bucket.op; async=true)
        end
        for _ in 1:(rank == world - 1 ? steps : 0)
            step_begin!(ctx)
            foreach(parameter -> announce(ctx, parameter), ctx.parameters)
            finalize!(ctx)
        end
        join!(ctx)
        @test length(given) == steps * bucket_count(ctx)
        @test 0 <= alive <= 2 * bucket_count(ctx)
    end
end

include("optimizers.jl")

@testset "mismatch and abort" begin
    Context(group) do ctx
        register!(ctx, "w"; size=(3, 2 + (rank == 1)))
        fails(() -> commit!(ctx), C.DDP_ERROR_MISMATCH, "w")
    end
    lonely = split(group, 0)
    barrier(group)
    rank == 0 && abort!(lonely, "enough")
    aborted = fails(() -> foreach(_ -> barrier(lonely), 1:100), C.DDP_ERROR_ABORTED, "enough")
    @test aborted.rank == 0
    fails(() -> check(lonely), C.DDP_ERROR_ABORTED)
    check(group)
end
