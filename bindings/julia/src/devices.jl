# Memory of GPUs, and streams (ddp/device.h). Arrays of any package are taken by three functions, to which a program adds methods
# for its types: docs/julia.md has those for CUDA.jl.

"Where memory lies: DDP.CPU, or a GPU, `DDP.cuda(0)`."
struct Device
    kind::Int32
    index::Int32
end
const CPU = Device(LibDDP.DDP_DEVICE_CPU, 0)

"The GPU with this number, from 0."
cuda(index::Integer=0) = Device(LibDDP.DDP_DEVICE_CUDA, index)

Base.show(io::IO, device::Device) = print(io, device == CPU ? "cpu" : "cuda:$(device.index)")

"""
    DDP.device(array)

Where an array lies. A view or a reshaped array lies where its parent does. All others lie on DDP.CPU, unless a program
says otherwise: `DDP.device(array::CuArray) = DDP.cuda(CUDA.deviceid(CUDA.device(array)))`.
"""
device(array::AbstractArray) = parent(array) === array ? CPU : device(parent(array))

"""
    DDP.pointer_of(array)

The address of the first element of an array on a GPU: that of `pointer(array)`, for any kind of pointer.
"""
pointer_of(array::AbstractArray) = Ptr{Cvoid}(reinterpret(UInt, pointer(array)))

"""
    DDP.stream_of(stream)

The handle of a stream as C takes it: of a number, a pointer, an object with a field `handle` (CUDA.jl's), or `nothing`, the legacy
default stream.
"""
stream_of(stream::Union{Integer,Ptr}) = Ptr{Cvoid}(UInt(stream))
stream_of(::Nothing) = Ptr{Cvoid}(0)
function stream_of(stream)
    hasproperty(stream, :handle) && return stream_of(stream.handle)
    throw(ArgumentError("stream: a $(typeof(stream)) has no handle; add a method to DDP.stream_of that gives it"))
end

"""
An array of libddp's on a GPU: a gradient's place in its bucket, or a bucket. It has a size, a `pointer` and a `DDP.device`, and keeps
the memory there. Its elements are reached by the package that the GPU is used with: with CUDA.jl by
`unsafe_wrap(CuArray, CuPtr{T}(UInt(pointer(array))), size(array))`.
"""
struct DeviceArray{T,N} <: DenseArray{T,N}
    pointer::Ptr{T}
    dims::Dims{N}
    device::Device
    owner::Handle
end
Base.size(array::DeviceArray) = array.dims
Base.pointer(array::DeviceArray) = array.pointer
Base.show(io::IO, array::DeviceArray{T}) where {T} =
    print(io, "DDP.DeviceArray of $(join(array.dims, '×')) $T on $(array.device)")
Base.show(io::IO, ::MIME"text/plain", array::DeviceArray) = show(io, array)
device(array::DeviceArray) = array.device

@noinline unreachable(array::DeviceArray) =
    throw(ArgumentError("the array is on $(array.device), which Julia cannot read or write; wrap its `pointer` in an array of the " *
                        "package that you use the GPU with"))
Base.getindex(array::DeviceArray, ::Int...) = unreachable(array)
Base.setindex!(array::DeviceArray, value, ::Int...) = unreachable(array)
Base.unsafe_convert(::Type{Ptr{T}}, array::DeviceArray{T}) where {T} = unreachable(array)

"The number of GPUs; an error says why there is none."
function device_count()
    devices = Ref{Int32}(0)
    call(LibDDP.ddp_device_count, LibDDP.DDP_DEVICE_CUDA, devices)
    return Int(devices[])
end
