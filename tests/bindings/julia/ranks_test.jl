# ddprun -n N julia ranks_test.jl: the tests of ranks.jl; quiet but on rank 0.
const DDP_SOURCE = ENV["DDP_SOURCE"]
using Test
@testset "ranks" begin
    include("ranks.jl")
end
