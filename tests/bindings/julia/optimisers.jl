# bindings/julia/ext/DDPOptimisersExt.jl on the ranks of trees.jl, with the stand-ins for Functors.jl and Optimisers.jl that are beside
# this file. If the real packages are in JULIA_LOAD_PATH, they come first.
push!(LOAD_PATH, joinpath(DDP_SOURCE, "tests", "bindings", "julia", "stand_ins"))
refused(() -> DistributedOptimizer(group, "Adam"), "String", "Optimisers.jl")  # before the extension
import Functors, Optimisers
include(joinpath(DDP_SOURCE, "bindings", "julia", "ext", "DDPOptimisersExt.jl"))

"A rule with state: an array and a number."
struct Momentum <: Optimisers.AbstractRule
    eta::Float32
end
Optimisers.init(::Momentum, x::AbstractArray) = (zero(x), 0)
function Optimisers.apply!(rule::Momentum, (speed, steps), x, dx)
    speed .= 0.9f0 .* speed .+ dx
    return (speed, steps + 1), rule.eta .* speed
end

"Gives the rule inside it a gradient that is not yet computed."
struct Doubled{Rule<:Optimisers.AbstractRule} <: Optimisers.AbstractRule
    rule::Rule
end
Optimisers.init(doubled::Doubled, x::AbstractArray) = Optimisers.init(doubled.rule, x)
Optimisers.apply!(doubled::Doubled, state, x, dx) = Optimisers.apply!(doubled.rule, state, x, Base.broadcasted(*, 2, dx))

# Layers as those of Flux.
struct Linear{Weight,Bias,Activation}
    weight::Weight
    bias::Bias
    activation::Activation
end
mutable struct Norm
    scale::Vector{Float32}
    means::Vector{Float32}
    steps::Int
end
Optimisers.trainable(norm::Norm) = (scale=norm.scale,)
struct Layers{Inner}
    layers::Inner
    name::String
    table::Vector{Int}
end

function model_of(change)
    shared = Float32[1 2; 3 4] .+ change
    return Layers((Linear(shared, Float32[1, 2] .+ change, tanh), Norm([1f0 + change], [2f0 + change], change),
                   [Linear(shared', false, identity)], Dict("b" => [3f0 + change], "a" => [4f0 + change])), "model", [1, 2])
end
"As Zygote gives them."
gradient_of(r) = (layers=((weight=Float32[r 1; 2r 0], bias=Float32[r, 2r], activation=nothing),
                          (scale=[3f0r], means=nothing, steps=nothing), [(weight=Float32[1 r; 0 1], bias=nothing, activation=nothing)],
                          Dict("b" => [1f0r], "a" => r == 0 ? nothing : [2f0r])), name=nothing, table=nothing)
numbers_of(model) = [vec(model.layers[1].weight); model.layers[1].bias; model.layers[2].scale; model.layers[4]["a"]; model.layers[4]["b"]]

@testset "a model of structs" begin
    model = model_of(rank)
    kept = model.layers[1].weight
    parallel = DataParallel(model, group)
    @test parallel.params === model && model.layers[1].weight === kept
    @test numbers_of(model) == numbers_of(model_of(0)) && kept' == model.layers[3][1].weight
    @test (model.layers[2].means, model.layers[2].steps) == ([2f0 + rank], rank)  # not trained
    @test [parameter.name for parameter in parallel.context.parameters] ==
          ["layers.0.weight", "layers.0.bias", "layers.1.scale", "layers.2.0.weight", "layers.3.a", "layers.3.b"]
    means = mean_gradients(parallel, gradient_of(rank))
    @test keys(means) == (:layers, :name, :table) && means.name === means.table === nothing
    @test means.layers[1] == (weight=Float32[mean_rank 1; 2mean_rank 0], bias=Float32[mean_rank, 2mean_rank], activation=nothing)
    @test means.layers[2] == (scale=Float32[3mean_rank], means=nothing, steps=nothing)
    @test means.layers[3][1].weight == Float32[1 mean_rank; 0 1] && means.layers[4]["a"] ≈ [2mean_rank]
    alone = model_of(0)
    for (each, grads) in ((model, means), (alone, gradient_of(mean_rank)))
        state, _ = Optimisers.update!(Optimisers.setup(Momentum(0.1), each), each, grads)
        @test state.layers[1].weight.state[2] == 1
    end
    @test numbers_of(model) ≈ numbers_of(alone)
    @test synchronize!!(group, model; root=1) === model
    @test model.layers[2].means == [3f0] && model.layers[1].weight === kept && model.layers[2].steps == rank
    @test numbers_of(model) ≈ numbers_of(alone)
    inside = (encoder=model_of(rank), bias=1f0 + rank)
    @test DataParallel(inside, group).params.bias == 1 && numbers_of(inside.encoder) == numbers_of(model_of(0))
    refused(() -> DataParallel(Linear(0f0:1f0, false, tanh), group), "params", "overwritten")
    close(parallel)
end

@testset "a rule that averages" begin
    model, expected = model_of(0).layers[1], model_of(0).layers[1]
    grads(r) = gradient_of(r + 1).layers[1]
    state, expected_state = Optimisers.setup(DistributedOptimizer(group, Momentum(0.1)), model), Optimisers.setup(Momentum(0.1), expected)
    mine = grads(rank)
    for eta in (0.1, 0.01)
        Optimisers.adjust!(state, eta)
        Optimisers.adjust!(expected_state, eta)
        for _ in 1:2
            state, model = Optimisers.update!(state, model, mine)
            expected_state, expected = Optimisers.update!(expected_state, expected, grads(mean_rank))
        end
    end
    @test model.weight ≈ expected.weight && model.bias ≈ expected.bias && model.bias != model_of(0).layers[1].bias
    @test state.weight.state[1] ≈ expected_state.weight.state[1]
    @test mine == grads(rank)  # another parameter may have the same array
    lazy = Optimisers.setup(Doubled(DistributedOptimizer(group, Momentum(1))), [0f0])
    @test Optimisers.update!(lazy, [0f0], [1f0 + rank])[2] ≈ [-2 * (1 + mean_rank)]
    @test Optimisers.adjust(DistributedOptimizer(group, Momentum(1)); eta=2f0).rule == Momentum(2)
    @test Functors.isleaf(group)
    refused(() -> DistributedOptimizer(group, "Adam"), "String")
end

@testset "state of an optimizer" begin
    shared = Float32[1, 2]
    state = Optimisers.setup(Momentum(0.1), (a=shared, b=(shared,)))
    state.a.state = (fill(Float32(rank), 2), 5 + rank)
    same = synchronize!!(group, state; root=1)
    @test same.a === state.a === state.b[1]
    @test same.a.state == (Float32[1, 1], 6)
end
