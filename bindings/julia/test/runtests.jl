# Tests that need no other ranks: `Pkg.test`, or julia --project=. test/runtests.jl. tests/bindings/julia has the rest.
include("support.jl")

@testset "DDP" begin
    @testset "arrays" begin include("arrays.jl") end
    @testset "errors" begin include("errors.jl") end
    @testset "elastic" begin include("elastic.jl") end
    @testset "interrupts" begin include("interrupts.jl") end
    @testset "lifetime" begin include("lifetime.jl") end
end
