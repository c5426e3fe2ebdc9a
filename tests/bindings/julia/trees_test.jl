# ddprun -n N julia trees_test.jl: the tests of trees.jl and optimisers.jl; quiet but on rank 0.
const DDP_SOURCE = ENV["DDP_SOURCE"]
using Test
@testset "trees" begin
    include("trees.jl")
    include("optimisers.jl")
end
