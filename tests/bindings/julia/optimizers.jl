# Optimizers and norms on several ranks, against plain Julia. ranks.jl includes this file.

"AdamW, in Float64, over gradients that stay the same but for their factor."
function adamw(gradients, rates, decay; beta1=0.9, beta2=0.99)
    x, m, v = zero(gradients), zero(gradients), zero(gradients)
    for (t, rate) in enumerate(rates)
        m = beta1 .* m .+ (1 - beta1) .* gradients
        v = beta2 .* v .+ (1 - beta2) .* gradients .^ 2
        x = x .- rate .* decay .* x .- rate .* (m ./ (1 - beta1^t)) ./ (sqrt.(v ./ (1 - beta2^t)) .+ 1e-8)
    end
    return x, m, v
end

const RATES = [0.01, 0.01, 0.01, 0.005, 0.005]

function step_with(optimizer, ctx, shard)
    step_begin!(ctx)
    foreach(parameter -> announce(ctx, parameter), ctx.parameters)
    finalize!(ctx)
    step!(optimizer; scale=0.5)
    shard || return nothing
    publish!(ctx)
    foreach(parameter -> wait_value(ctx, parameter), ctx.parameters)
end

function trained(shard)
    ctx = make(; shard=shard)
    optimizer = Optimizer(ctx, "adamw"; lr=0.01, beta2=0.99)
    set_option!(optimizer, ctx.parameters[2], :weight_decay, 0.5)
    for rate in RATES
        set_option!(optimizer, :lr, rate)
        step_with(optimizer, ctx, shard)
    end
    return ctx, optimizer
end

values_and_state(ctx, optimizer) =
    vcat(optimizer_state(optimizer),
         isempty(DDP.pieces(ctx)) ? [ShardArray("value", p, p.data) for p in ctx.parameters] :
         [ShardArray("value", piece, piece.value) for piece in DDP.pieces(ctx)])

@testset "optimizers in the step" begin
    ctx = make(; shard=true)
    optimizer = Optimizer(ctx, "adamw"; lr=0.01, beta2=0.99)
    in_step!(optimizer; scale=0.5)
    for rate in RATES
        set_option!(optimizer, :lr, rate)
        step_begin!(ctx)
        foreach(parameter -> announce(ctx, parameter), ctx.parameters)
        finalize!(ctx)
        foreach(parameter -> wait_value(ctx, parameter), ctx.parameters)
    end
    for parameter in ctx.parameters
        @test isapprox(parameter.data, adamw(0.5 .* Float64.(means), RATES, 0.01)[1]; atol=1e-5)
    end
end

@testset "optimizers" begin
    gradients = 0.5 .* Float64.(means)
    whole = nothing
    for shard in (false, true)
        ctx, optimizer = trained(shard)
        for (i, parameter) in enumerate(ctx.parameters)
            @test isapprox(parameter.data, adamw(gradients, RATES, i == 2 ? 0.5 : 0.01)[1]; atol=1e-5)
            shard && @test parameter.data == whole[i]
        end
        whole = [copy(parameter.data) for parameter in ctx.parameters]
        _, m, v = adamw(gradients, RATES, 0.0)
        elements = 0
        for state in optimizer_state(optimizer)
            if state.key == "step"
                @test (state.data, state.first, state.replicated) == ([5], 0, true)
            else
                expected = (state.key == "exp_avg" ? m : v)[(state.first + 1):(state.first + length(state.data))]
                @test isapprox(state.data, expected; rtol=1e-5)
                @test state.replicated == !shard
                elements += length(state.data)
            end
        end
        counted = Int64[elements]
        allreduce!(group, counted, :sum)
        @test counted == [2 * 4 * 1000 * (shard ? 1 : world)]

        # All ranks save, and one less loads and goes on.
        name = zeros(UInt8, 256)
        folder = rank == 0 ? mktempdir() : ""
        copyto!(name, codeunits(folder))
        bcast!(group, name; root=0)
        folder = String(name[1:(findfirst(==(0), name) - 1)])
        save_shards(ctx, folder, values_and_state(ctx, optimizer); note="step 5")
        fewer = split(group, rank < max(1, world - 1) ? 0 : -1)
        if fewer !== nothing
            again = make(fewer; shard=shard)
            other = Optimizer(again, "adamw"; lr=0.005, beta2=0.99, weight_decay=0)
            @test load_shards!(again, folder, values_and_state(again, other)) == "step 5"
            @test [parameter.data for parameter in again.parameters] == whole
            step_with(other, again, shard)
            mine = 0.5 .* Float64.(vec(sum(everyones[:, 1:fewer.world_size]; dims=2)) ./ fewer.world_size)
            m6, v6 = 0.9 .* m .+ 0.1 .* mine, 0.99 .* v .+ 0.01 .* mine .^ 2
            change = 0.005 .* (m6 ./ (1 - 0.9^6)) ./ (sqrt.(v6 ./ (1 - 0.99^6)) .+ 1e-8)
            @test isapprox(again.parameters[3].data, whole[3] .- change; atol=1e-5)
        end
        barrier(group)

        arrays = [state.data for state in optimizer_state(optimizer)]
        before = copy.(arrays)
        close(optimizer)
        close(ctx)
        GC.gc()
        DDP.sweep()
        @test arrays == before
        fails(() -> step!(optimizer), C.DDP_ERROR_INVALID_STATE, "closed")
        fails(() -> optimizer_state(optimizer), C.DDP_ERROR_INVALID_STATE, "closed")
    end
    make(group; shard=true) do ctx
        fails(() -> Optimizer(ctx, "adam"), C.DDP_ERROR_INVALID_ARGUMENT, "adamw")
        fails(() -> Optimizer(ctx, "sgd"; beta1=1), C.DDP_ERROR_INVALID_ARGUMENT, "momentum")
        optimizer = Optimizer(ctx, "sgd"; nesterov=true, momentum=0.5)
        fails(() -> set_option!(optimizer, :rate, 1), C.DDP_ERROR_INVALID_ARGUMENT, "rate")
        fails(() -> step!(optimizer), C.DDP_ERROR_INVALID_STATE, "no step has given means")
        step_with(optimizer, ctx, true)
        fails(() -> step!(optimizer), C.DDP_ERROR_INVALID_STATE, "has sent the values")
        piece = DDP.pieces(ctx)[1]
        refused(() -> ShardArray("m", piece, zeros(Float32, 1)), "m of p", "1 elements")
    end
end

@testset "votes" begin
    ctx = make(; votes=true)
    function step()
        step_begin!(ctx)
        foreach(parameter -> announce(ctx, parameter), ctx.parameters)
        finalize!(ctx)
        return votes(ctx)
    end
    vote!(ctx, :stop, DDP.VOTE_USER << rank; level=rank + 3)
    cast = step()
    @test :stop in cast && all(r -> DDP.VOTE_USER << r in cast, 0:(world - 1)) && !(:checkpoint in cast)
    @test (cast.all, cast.level) == (C.DDP_VOTE_STOP, world + 2)
    rank == world - 1 && vote!(ctx, :checkpoint)
    cast = step()
    @test (cast.any, cast.all, cast.level) == (C.DDP_VOTE_CHECKPOINT, world == 1 ? C.DDP_VOTE_CHECKPOINT : 0, 0)
    @test step().any == 0
    refused(() -> vote!(ctx, :end), "unknown vote :end")
    fails(() -> vote!(ctx, 1 << 15), C.DDP_ERROR_UNSUPPORTED, "has no name")
    fails(() -> vote!(ctx; level=33), C.DDP_ERROR_INVALID_ARGUMENT, "from 0 to 32")
    close(ctx)
    ctx = make()
    fails(() -> vote!(ctx, :stop), C.DDP_ERROR_INVALID_STATE, "votes=true")
    close(ctx)
end

@testset "norms" begin
    for shard in (false, true)
        Context(group; shard=shard) do ctx
            foreach(i -> register!(ctx, "p$i", zeros(Float32, 1000)), 0:3)
            second = ctx.parameters[2:2]
            norms = [track_grad_norm!(ctx), track_grad_norm!(ctx, Inf, second), track_grad_norm!(ctx, 1, second)]
            @test norms == [0, 1, 2]
            refused(() -> track_grad_norm!(ctx, 2, []), "parameters")
            fails(() -> track_grad_norm!(ctx, 3), C.DDP_ERROR_INVALID_ARGUMENT, "1, 2 or infinity")
            commit!(ctx)
            fails(() -> grad_norm(ctx, 0), C.DDP_ERROR_INVALID_STATE)
            optimizer = Optimizer(ctx, "sgd"; lr=1)
            step_begin!(ctx)
            foreach(parameter -> announce(ctx, parameter), ctx.parameters)
            finalize!(ctx)
            total = sqrt(4 * sum(abs2, Float64.(means)))
            @test grad_norm(ctx, norms[1]) ≈ total rtol = 1e-6
            @test grad_norm(ctx, norms[2]) ≈ maximum(means) rtol = 1e-6
            @test grad_norm(ctx, norms[3]) ≈ sum(Float64.(means)) rtol = 1e-6
            @test clip_factor(ctx, norms[1], 10) ≈ min(1, 10 / (grad_norm(ctx, norms[1]) + 1e-6))
            @test clip_grad_norm!(ctx, norms[1], 10) == grad_norm(ctx, norms[1])
            step!(optimizer)
            shard && publish!(ctx)
            foreach(parameter -> wait_value(ctx, parameter), ctx.parameters)
            @test all(isapprox(parameter.data, -10 .* means ./ total; rtol=1e-5) for parameter in ctx.parameters)
            step_begin!(ctx)
            foreach(p -> put!(ctx, p, fill(p.index == 1 && rank == 0 ? NaN32 : 1f0, 1000)), ctx.parameters)
            finalize!(ctx)
            @test isnan(grad_norm(ctx, norms[1]))
            @test fails(() -> clip_grad_norm!(ctx, norms[1], 1), C.DDP_ERROR_NONFINITE, "'p1'").parameter == 1
        end
    end
end
