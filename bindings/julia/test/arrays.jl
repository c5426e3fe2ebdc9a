# Arrays are used where they lie, and those that cannot be are refused.
group = alone()

@testset "element types" begin
    for (type, code) in ((Float16, DDP.F16), (Float32, DDP.F32), (Float64, DDP.F64), (Int32, DDP.I32), (Int64, DDP.I64),
                         (UInt8, DDP.U8), (ComplexF32, DDP.C64), (ComplexF64, DDP.C128))
        array = zeros(type, 2, 3)
        memory = DDP.memory_of("a", array)
        @test memory.dtype == code && memory.dims == (2, 3)
        @test memory.pointer == pointer(array)
        @test sizeof(type) == C.ddp_dtype_size(code)
        shown = alloc(group, type, 3, 4)
        @test shown isa Array{type,2} && size(shown) == (3, 4) && all(iszero, shown)
        shown .+= 1
        allreduce!(group, shown)
        @test sum(shown) == 12
    end
    @test DDP.memory_of("a", UInt16[1], DDP.BF16).dtype == DDP.BF16
    @test alloc(group, DDP.BF16, 2) isa Vector{UInt16}
    one_in_bf16 = UInt16[0x3f80]
    allreduce!(group, one_in_bf16, :avg; dtype=DDP.BF16)
    @test one_in_bf16 == [0x3f80]
end

@testset "views without a copy" begin
    base = reshape(collect(Float32, 1:24), 4, 6)
    for (view, at) in ((view(base, :, 2:3), 5), (view(base, 2:4, 6), 22), (reshape(view(base, :, 1:2), 8), 1),
                       (view(base, 1:4, :), 1), (reinterpret(Int32, base), 1), (view(base, 3:3, 1:1), 3), (transpose(base[:, 1]), 0),
                       (view(base, 7), 7), (PermutedDimsArray(base, (1, 2)), 1))
        memory = DDP.memory_of("a", view)
        at == 0 || @test memory.pointer == pointer(base, at)
        @test memory.dims == size(view)
    end
    part = view(base, :, 3:4)
    allreduce!(group, part, *)
    bcast!(group, part)
    for strided in (view(base, 1:2, :), view(base, 1:2:4, 1), transpose(base), PermutedDimsArray(base, (2, 1)))
        refused(() -> allreduce!(group, strided), "recv", "contiguous")
    end
    @test DDP.memory_of("a", fill(1.0)).dims == ()
    @test DDP.memory_of("a", zeros(Float32, 0, 3)).dims == (0, 3)
    allreduce!(group, Float32[])
end

@testset "refused" begin
    for (given, words) in ((zeros(Int16, 3), ("recv", "Int16")), (["a"], ("recv", "String")), (1:3, ("recv", "memory")),
                           (1.0, ("recv", "Float64")), (nothing, ("recv", "Nothing")), (Any[1], ("recv", "Any")),
                           (zeros(UInt16, 2), ("recv", "BF16")), (zeros(Bool, 2), ("recv", "Bool")))
        refused(() -> allreduce!(group, given), words...)
    end
    refused(() -> allreduce!(group, zeros(3); dtype=DDP.BF16), "recv", "bf16")
    refused(() -> allreduce!(group, zeros(3); send=zeros(4)), "send", "4 elements")
    refused(() -> allreduce!(group, zeros(3); send=zeros(Int64, 3)), "send", "Int64")
    refused(() -> allreduce!(group, zeros(3), :median), "op", "median")
    refused(() -> allreduce!(group, zeros(3), 17), "op", "17")
    refused(() -> alloc(group, Int8, 3), "type", "Int8")
    refused(() -> alloc(group, 99, 3), "99")
end

@testset "column-major shapes" begin
    # An n x m matrix here is the row-major m x n matrix of C, of the same bytes.
    ctx = Context(group; reduction=:sum)
    dense = register!(ctx, "dense", zeros(Float32, 5, 7))
    sparse = register!(ctx, "sparse"; size=(2, 10), sparse=true)
    factored = register!(ctx, "factored"; size=(30, 40), factored=true)
    scalar = register!(ctx, "scalar"; size=())
    shapes = []
    commit!(ctx)
    set_hook!(ctx) do group, bucket
        for each in bucket.gradients
            tensor = Ref{C.ddp_tensor}()
            GC.@preserve tensor unsafe_store!(Ptr{Csize_t}(pointer_from_objref(tensor)), sizeof(C.ddp_tensor))
            index = findfirst(other -> other.parameter === each.parameter, bucket.gradients) - 1
            DDP.call(C.ddp_bucket_gradient, bucket.handle, Int32(index), tensor)
            push!(shapes, each.parameter.name => [unsafe_load(tensor[].shape, d) for d in 1:tensor[].ndim])
            @test size(each.array) == each.parameter.dims
        end
    end
    @test size(grad_view(ctx, dense)) == (5, 7)
    @test size(grad_view(ctx, scalar)) == ()
    put!(ctx, dense, reshape(Float32.(1:35), 5, 7))
    put!(ctx, scalar, fill(1f0))
    slices = Float32[1 2; 3 4]
    grad_ready_sparse(ctx, sparse, [10, 3], slices)
    left, right = Float32.(reshape(1:60, 30, 2)), Float32.(reshape(1:80, 40, 2))
    grad_ready_factors(ctx, factored, left, right)
    finalize!(ctx)
    @test sort(shapes) == ["dense" => [7, 5], "scalar" => []]
    @test grad_view(ctx, dense) == reshape(1:35, 5, 7)
    rows, values = sparse_gradient(ctx, sparse)
    @test rows == [3, 10] && values == [2 1; 4 3]
    @test grad_view(ctx, factored) == left * right'
    refused(() -> grad_ready_factors(ctx, factored, right, left), ": left", "(30, 2)")
    refused(() -> grad_ready_sparse(ctx, sparse, [1], slices), ": values")
    fails(() -> grad_ready_sparse(ctx, sparse, [11, 1], slices), C.DDP_ERROR_INVALID_ARGUMENT)
    close(ctx)
end

@testset "registered memory stays" begin
    ctx = Context(group)
    weights = ones(Float32, 100)
    register!(ctx, "w", weights)
    VERSION < v"1.11" && @test_throws ErrorException push!(weights, 1)  # it would move
    register!(ctx, "temporary", zeros(Float32, 1000), zeros(Float32, 1000))
    GC.gc()
    commit!(ctx)
    foreach(parameter -> grad_ready(ctx, parameter), ctx.parameters)
    finalize!(ctx)
    close(ctx)
    # memory of libddp's, too
    kept = view(alloc(group, Float32, 1000), 1:10)
    other = alone()
    gone = reshape(alloc(other, Float64, 100), 10, 10)
    close(other)
    GC.gc()
    DDP.sweep()
    kept .= 1
    gone .= 2
    @test sum(gone) == 200
end
close(group)
