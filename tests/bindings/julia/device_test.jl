# ddprun -n N julia device_test.jl LIBRARY: parameters on a GPU, a real one or the tests' own, whose memory no processor can touch and
# whose streams are late. LIBRARY has the functions of tests/support/test_device.h.
using DDP
include(joinpath(pkgdir(DDP), "test", "support.jl"))
import Libdl

const COUNT = 1000
const library = Libdl.dlopen(ARGS[1], Libdl.RTLD_LAZY | Libdl.RTLD_LOCAL)
const fake_at, allocate_at, write_at, read_at, make_stream_at, wait_at =
    map(name -> Libdl.dlsym(library, "test_device_" * name), ("is_fake", "allocate", "write", "read", "make_stream", "wait"))

"As CuPtr of CUDA.jl."
primitive type GpuPointer 64 end

"An array as a package for GPUs would have it."
struct GpuArray{N} <: DenseArray{Float32,N}
    address::UInt
    dims::Dims{N}
end
GpuArray(value::Real, dims::Integer...) =
    fill!(GpuArray(UInt(ccall(allocate_at, Ptr{Cvoid}, (Cint, Csize_t), 0, 4 * prod(dims))), Dims(dims)), value)
Base.size(array::GpuArray) = array.dims
Base.pointer(array::GpuArray) = reinterpret(GpuPointer, array.address)
Base.unsafe_convert(::Type{Ptr{Float32}}, array::GpuArray) = error("no address of the CPU")
DDP.device(array::GpuArray) = DDP.cuda(0)

address(array) = reinterpret(UInt, pointer(array))
Base.fill!(array::GpuArray, value) = (set_all(array, value); array)
function set_all(array, value)
    values = fill(Float32(value), size(array))
    ccall(write_at, Cvoid, (UInt, Ptr{Float32}, Csize_t), address(array), values, sizeof(values))
end
function elements(array)
    values = Array{Float32}(undef, size(array))
    ccall(read_at, Cvoid, (Ptr{Float32}, UInt, Csize_t), values, address(array), sizeof(values))
    return values
end

"As CuStream of CUDA.jl."
struct Stream
    handle::Ptr{Cvoid}
end
Stream() = Stream(ccall(make_stream_at, Ptr{Cvoid}, (Cint,), 0))
holds(value, array, stream) = (ccall(wait_at, Cvoid, (Cint, Ptr{Cvoid}), 0, stream.handle); all(==(value), elements(array)))

const group = Group(; timeout=30)
const rank = group.rank
const mean = (group.world_size - 1) / 2  # of the ranks' numbers
const stream = Stream()

function on_gpu(f)
    Context(group) do ctx
        set_stream!(ctx, DDP.cuda(0), stream)
        f(ctx)
    end
end

@testset "steps" begin
    on_gpu() do ctx
        data, grad, means = GpuArray(10 + rank, COUNT), GpuArray(0, COUNT), GpuArray(20 + rank, COUNT)
        p = register!(ctx, "w", data, grad)
        register_buffer!(ctx, "means", means)
        @test p.device == DDP.cuda(0) && string(p.device) == "cuda:0"
        commit!(ctx)
        @test holds(10, data, stream) && holds(20, means, stream)
        for step in 0:2
            step_begin!(ctx)
            fill!(grad, step + rank)
            grad_ready_on(ctx, p, stream)
            step == 2 ? finalize_enqueue!(ctx) : finalize_on!(ctx, stream)
            @test holds(step + mean, grad, stream)
        end
        fill!(grad, rank)
        grad_ready(ctx, p)
        finalize!(ctx)
        @test holds(mean, grad, stream)
    end
end

@testset "another stream waits" begin
    on_gpu() do ctx
        other, grad = Stream(), GpuArray(rank, COUNT)
        p = register!(ctx, "w", nothing, grad)
        commit!(ctx)
        grad_ready_on(ctx, p, stream)
        finalize_async!(ctx)
        wait_param_on(ctx, p, other)
        @test holds(mean, grad, other)
        finalize_on!(ctx, stream)
        fails(() -> wait_param_on(ctx, p, other), C.DDP_ERROR_INVALID_STATE, "wait_param_on")
    end
end

@testset "put and get" begin
    on_gpu() do ctx
        other, given, back = Stream(), GpuArray(rank, COUNT), GpuArray(-1, COUNT)
        p = register!(ctx, "w"; size=(COUNT,), dtype=DDP.BF16, grad_dtype=Float32, device=DDP.cuda(0))
        commit!(ctx)
        put_on!(ctx, p, given, other)
        fails(() -> get_on!(ctx, p, back, other), C.DDP_ERROR_INVALID_STATE, "under way")
        holds(rank, given, other)
        fill!(given, -5)
        finalize_on!(ctx, other)
        get_on!(ctx, p, back, other)
        @test holds(mean, back, other)
        refused(() -> put_on!(ctx, p, GpuArray(0, 2), other), "w: gradient", "size")
        fails(() -> put_on!(ctx, p, zeros(Float32, COUNT), other), C.DDP_ERROR_INVALID_ARGUMENT, "the CPU", "cuda:0")
    end
end

@testset "views and hooks" begin
    seen = []
    kept = on_gpu() do ctx
        p = register!(ctx, "w"; size=(10, 100), device=DDP.cuda(0))
        commit!(ctx)
        set_hook!(ctx) do group, bucket
            push!(seen, bucket.device, bucket.stream != C_NULL, size(bucket.gradients[1].array), DDP.device(bucket.buffer))
            allreduce!(group, bucket.buffer, bucket.op; async=true)
        end
        view = grad_view(ctx, p)
        @test view isa DDP.DeviceArray{Float32,2} && size(view) == (10, 100)
        @test sprint(show, MIME("text/plain"), view) == "DDP.DeviceArray of 10×100 Float32 on cuda:0"
        for touch in (() -> view[1], () -> view[1, 1] = 0, () -> sum(view), () -> Array(view))
            refused(touch, "cuda:0", "pointer")
        end
        holds(0, view, stream)
        set_all(view, rank)
        grad_ready_on(ctx, p, stream)
        finalize_on!(ctx, stream)
        @test holds(mean, view, stream)
        view
    end
    GC.gc()
    DDP.sweep()
    @test holds(mean, kept, stream)
    @test seen == [DDP.cuda(0), true, (10, 100), DDP.cuda(0)]
end

@testset "what cannot be used" begin
    here, host = GpuArray(1, COUNT), ones(Float32, COUNT)
    on_gpu() do ctx
        refused(() -> register!(ctx, "w", host, here), "cpu and cuda:0")
        refused(() -> register!(ctx, "w", here; device=DDP.cuda(1)), "cuda:1 and cuda:0")
        fails(() -> register!(ctx, "w"; size=1, device=DDP.cuda(99)), C.DDP_ERROR_UNSUPPORTED, "cuda:99")
        refused(() -> register!(ctx, "w", view(here, 1:2:COUNT)), "data", "contiguous")
        p = register!(ctx, "w", here)
        refused(() -> put!(ctx, p, host), "cuda:0", "put_on!")
        e = register!(ctx, "e"; size=(2, 3), sparse=true)
        refused(() -> grad_ready_sparse(ctx, e, [1], GpuArray(1, 2, 1)), "values", "cuda:0")
        fails(() -> set_stream!(ctx, DDP.CPU, nothing), C.DDP_ERROR_INVALID_ARGUMENT, "no streams")
        refused(() -> grad_ready_on(ctx, p, "a stream"), "stream", "DDP.stream_of")
    end
    fails(() -> allreduce!(group, here), C.DDP_ERROR_UNSUPPORTED, "communication hooks")
end

@testset "devices" begin
    @test ccall(fake_at, Cint, ()) != 1 || DDP.device_count() == 2
    @test DDP.stream_of(7) == Ptr{Cvoid}(7) && DDP.stream_of(nothing) == C_NULL
    @test DDP.device(reshape(view(GpuArray(0, 4), 1:2), 2, 1)) == DDP.cuda(0) && DDP.device(1:3) == DDP.CPU
end
close(group)
