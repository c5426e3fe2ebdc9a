# Trees of arrays, as Lux and Zygote have them. ddprun starts trees_test.jl on 2 ranks; all run the same tests in the same order.
include(joinpath(DDP_SOURCE, "bindings", "julia", "test", "support.jl"))
import Random

const group = Group(; timeout=30)
const rank, world = group.rank, group.world_size
const mean_rank = (world - 1) / 2

# A dense layer by hand, in a tree as Lux has them.
tree_of(change) = (dense=(weight=Float32[1 2 3; 4 5 6] .+ change, bias=Float32[0, 1] .+ change), scale=2f0 + change, name="layer",
                   more=[(w=ones(Float64, 2) .+ change,), nothing])
numbers(tree) = Float64[vec(tree.dense.weight); tree.dense.bias; tree.scale; tree.more[1].w]

function gradients_of(params, x, y)
    out = params.dense.weight * x .+ params.dense.bias
    wrong = 2f0 / length(y) .* (params.scale .* out .- y)
    back = params.scale .* wrong
    return (dense=(weight=back * x', bias=vec(sum(back; dims=2))), scale=sum(out .* wrong), name=nothing, more=nothing)
end
stepped(params, grads) = DDP.map_leaves((path, w, g) -> g === nothing ? w : w .- 0.01f0 .* g, "", params, grads)

@testset "trees" begin
    parallel = DataParallel(tree_of(rank), group; bucket_cap=32, first_bucket_cap=32)
    params, alone = parallel.params, tree_of(0)
    @test numbers(params) == numbers(alone)  # rank 0's
    @test (params.name, params.more[2]) == ("layer", nothing)
    for step in 1:5
        x, y = Float32[(7i + 5j + step) % 11 / 11 for i in 1:3, j in 1:(2world)], Float32[(3i + j + step) % 7 for i in 1:2, j in 1:(2world)]
        mine = (2rank + 1):(2rank + 2)
        params = stepped(params, mean_gradients(parallel, gradients_of(params, x[:, mine], y[:, mine])))
        alone = stepped(alone, mean_gradients(DataParallel(alone, Group(; rank=0, world_size=1)), gradients_of(alone, x, y)))
    end
    @test numbers(params) ≈ numbers(alone) rtol = 1e-5
    @test params.more[1].w == ones(2)
    with_gradient(; changes...) = merge(gradients_of(params, zeros(Float32, 3, 1), zeros(Float32, 2, 1)), changes)
    mistake(call::Function) = try
        call()
    catch error
        error
    end
    mistake(grads) = mistake(() -> mean_gradients(parallel, grads))
    @test occursin("dense.weight is Float32 of size (3, 2), the parameter Float32 of size (2, 3)",
                   mistake(with_gradient(; dense=(weight=zeros(Float32, 3, 2), bias=nothing))).msg)
    @test occursin("no dense.bias", mistake(with_gradient(; dense=(weight=zeros(Float32, 2, 3),))).msg)
    @test occursin("has more.2, which params does not", mistake(with_gradient(; more=[nothing, nothing, (w=ones(2),)])).msg)
    @test occursin("has other, which params does not", mistake(with_gradient(; other=1f0)).msg)
    @test occursin("dense.weight is Float64", mistake(with_gradient(; dense=(weight=zeros(2, 3), bias=nothing))).msg)
    @test [parameter.name for parameter in parallel.context.parameters] == ["dense.weight", "dense.bias", "scale", "more.0.w"]
    means = mean_gradients(parallel, with_gradient(; scale=Float32(rank)))  # the group is whole
    @test means.scale ≈ mean_rank && means.more[1].w == zeros(2) && means.name === nothing
    # libddp may have first values only: it would compare, average and hand over those, and say that all is well.
    for (name, call) in (("verify_interval", () -> DataParallel(params, group; verify_interval=2)),
                         ("average_parameters!", () -> average_parameters!(parallel.context)),
                         ("join!", () -> join!(parallel.context)),
                         ("Averager", () -> Averager(parallel.context, 1)),
                         ("add_context!", () -> add_context!(Elastic(; init_method="file:///unused", max_world=1), parallel.context)))
        error = mistake(call)
        @test error isa DDPError && error.status == DDP.LibDDP.DDP_ERROR_INVALID_STATE
        @test startswith(error.message, "$name: ") && occursin("first values", error.message)
    end
    @test occursin("give mean_gradients the sum", mistake(() -> no_sync(() -> nothing, parallel.context)).message)
    close(parallel)
    @test_throws ArgumentError DataParallel((a=1,), group)
end

"As packages for GPUs have arrays: copied as a whole, never read element by element."
struct Elsewhere{N} <: DenseArray{Float32,N}
    there::Array{Float32,N}
end
Base.size(array::Elsewhere) = size(array.there)
Base.Array(array::Elsewhere) = copy(array.there)
Base.similar(array::Elsewhere) = Elsewhere(similar(array.there))
Base.copyto!(to::Elsewhere, from::Array{Float32}) = (copyto!(to.there, from); to)

@testset "where a tree's arrays are" begin
    weight, other, scale = fill(Float32(rank), 2, 3), Elsewhere([1f0 + rank]), 0f0:1f0
    parallel = DataParallel((w=weight, o=other, tied=weight, s=scale .+ rank, t=weight'), group)
    @test parallel.params.w === parallel.params.tied === weight && iszero(weight)
    @test parallel.params.o === other && other.there == [1] && parallel.params.s == scale
    means = mean_gradients(parallel, (w=weight .+ rank, o=Elsewhere([2f0rank]), tied=nothing, s=nothing, t=weight' .+ rank))
    @test means.w ≈ fill(mean_rank, 2, 3) && means.t ≈ means.w' && iszero(means.tied)
    @test means.o isa Elsewhere && means.o.there ≈ [2mean_rank]
    @test DataParallel([1f0, rank], group).params == [1, 0]
end

@testset "what no rank uses" begin
    parallel = DataParallel((a=zeros(Float32, 2), b=(c=[0.0], d=0.0)), group; find_unused=true)
    for _ in 1:2
        @test mean_gradients(parallel, (a=Float32[rank, 1], b=nothing)) == (a=Float32[mean_rank, 1], b=(c=nothing, d=nothing))
        means = mean_gradients(parallel, rank == 0 ? (a=nothing, b=(c=[3.0], d=nothing)) : nothing)
        @test means.a === means.b.d === nothing && means.b.c ≈ [3 / world]
    end
end

@testset "the mean of one array" begin
    mine, means = Float32[1, 2, 3, 4] .+ rank, Float32[1, 2, 3, 4] .+ mean_rank
    @test DDP.averaged(group, mine) ≈ means && mine == Float32[1, 2, 3, 4] .+ rank
    @test DDP.averaged(group, reshape(mine, 2, 2)') ≈ reshape(means, 2, 2)'
    @test DDP.averaged(group, Base.broadcasted(*, 2f0, mine)) ≈ 2 .* means
    @test DDP.averaged(group, Elsewhere(mine)).there ≈ means
end

@testset "state and data" begin
    # As the states of Lux have it, with `Val`, a generator of random numbers and nothing beside numbers.
    state = (means=fill(Float32(rank), 3), steps=rank, rows=(Dict("b" => [rank], "a" => [2rank]),), f=sin, on=rank == 1,
             mask=[rank == 1, true], training=Val(true), rng=Random.MersenneTwister(rank), empty=NamedTuple(), none=Float32[])
    same = synchronize!!(group, state; root=1)
    @test same.means == fill(1f0, 3) && same.means === state.means
    @test (same.steps, same.rows[1]["a"], same.rows[1]["b"], same.f) == (1, [2], [1], sin)
    @test same.on === true && same.mask == [true, true]
    @test same.training === Val(true) && same.rng === state.rng && same.empty === NamedTuple() && same.none === state.none
    x, y = reshape(1:14, 2, 7), collect(1:7)
    part = DistributedDataContainer(group, (x=x, y=y))
    each = cld(7, world)
    mine = (rank * each + 1):min(7, (rank + 1) * each)
    @test length(part) == length(mine)
    @test part[1] == (x=x[:, first(mine)], y=first(mine)) && part[1:end].x == x[:, mine]
    @test [each.y for each in part] == collect(mine) && part[[1, 1]].y == [first(mine), first(mine)]
    @test_throws ArgumentError DistributedDataContainer(group, (x, [1]))
end
