# Arrays as memory, element types and operations by their names.

const TYPES = (Float16 => LibDDP.DDP_F16, Float32 => LibDDP.DDP_F32, Float64 => LibDDP.DDP_F64, Int32 => LibDDP.DDP_I32,
               Int64 => LibDDP.DDP_I64, UInt8 => LibDDP.DDP_U8, ComplexF32 => LibDDP.DDP_C64,
               ComplexF64 => LibDDP.DDP_C128, UInt16 => LibDDP.DDP_BF16)

"Memory of the caller's, as C takes it. `root` keeps it there."
struct Memory
    pointer::Ptr{Cvoid}
    dims::Dims
    dtype::Int32
    root::Any
    device::Device
end
Base.length(memory::Memory) = prod(memory.dims)

"The Julia type of a DDP_* type; `nothing` if there is none."
function julia_type(code::Integer)
    for (type, known) in TYPES
        known == code && return type
    end
    return nothing
end
type_name(code) = code == LibDDP.DDP_BF16 ? "bf16 (UInt16)" : string(julia_type(code))

"The DDP_* type of a Julia type or of itself."
function dtype_of(what, type::Type)
    for (known, code) in TYPES
        known === type && type !== UInt16 && return code
    end
    names = join((known for (known, _) in TYPES if known !== UInt16), ", ")
    throw(ArgumentError("$what: elements of type $type are not supported; libddp has $names, and UInt16 with dtype=DDP.BF16"))
end
function dtype_of(what, code::Integer)
    julia_type(code) === nothing && throw(ArgumentError("$what: $code is no element type of libddp"))
    return Int32(code)
end

function element_type(what, array, dtype)
    dtype === nothing && return dtype_of(what, eltype(array))
    code = dtype_of(what, dtype)
    eltype(array) === julia_type(code) && return code
    throw(ArgumentError("$what: $(type_name(code)) is expected, not elements of type $(eltype(array))"))
end

function contiguous(array::AbstractArray)
    expected = 1
    for d in 1:ndims(array)
        size(array, d) == 1 || stride(array, d) == expected || return false
        expected *= size(array, d)
    end
    return true
end

"""
The memory of an array: an Array, or a view, reshaped or reinterpreted array over one, whose elements follow each other; on_gpu: or
one of a GPU. Errors name `what`.
"""
function memory_of(what, array::AbstractArray, dtype=nothing; on_gpu::Bool=false)
    code, place = element_type(what, array, dtype), device(array)
    place == CPU || on_gpu ||
        throw(ArgumentError("$what: the array is on $place, and memory of the CPU is expected"))
    pointer = try
        isempty(array) || contiguous(array) || throw(ArgumentError("$what: the array is not contiguous; give a copy of it"))
        isempty(array) ? Ptr{Cvoid}(0) :
        place == CPU ? Ptr{Cvoid}(Base.unsafe_convert(Ptr{eltype(array)}, array)) : pointer_of(array)
    catch cause
        cause isa ArgumentError && rethrow()
        throw(ArgumentError("$what: a $(typeof(array)) has no memory of its own; give an Array or a contiguous view of one" *
                            (place == CPU ? "" : " (DDP.device says that it is on $place; DDP.pointer_of must tell where)")))
    end
    return Memory(pointer, size(array), code, array, place)
end
memory_of(what, other, dtype=nothing; on_gpu::Bool=false) =
    throw(ArgumentError("$what: an array is expected, not a $(typeof(other))"))

"""
An object that keeps an array's memory where it is as long as it is held. A Vector whose data another array shares cannot be
resized, which would move them.
"""
held(array::Vector) = (array, reshape(array, length(array), 1))
held(array::AbstractArray) = parent(array) === array ? array : (array, held(parent(array)))
held(other) = other

function same_layout(what, memory::Memory, dims::Dims, dtype::Int32)
    memory.dims == dims || throw(ArgumentError("$what: its size is $(memory.dims), but $dims is expected"))
    memory.dtype == dtype ||
        throw(ArgumentError("$what: its elements are $(type_name(memory.dtype)), but $(type_name(dtype)) is expected"))
    return nothing
end

"""
An array over memory of libddp's, which keeps `owner` alive. Other arrays over the same memory (a view, a reshaped one) keep
what the finalizer is attached to alive.
"""
function array_over(pointer::Ptr, dtype::Int32, dims::Dims, owner, place::Device=CPU)
    type = julia_type(dtype)
    place == CPU || return DeviceArray{type,length(dims)}(pointer, dims, place, owner)
    pointer == C_NULL && return Array{type}(undef, dims)
    array = unsafe_wrap(Array, Ptr{type}(pointer), dims)
    keep_for(storage(array), owner)
    return array
end
@static if VERSION >= v"1.11"
    storage(array::Array) = getfield(getfield(array, :ref), :mem)
else
    storage(array::Array) = array
end

const OPS = (:sum => LibDDP.DDP_SUM, :avg => LibDDP.DDP_AVG, :mean => LibDDP.DDP_AVG, :prod => LibDDP.DDP_PROD,
             :min => LibDDP.DDP_MIN, :max => LibDDP.DDP_MAX)

"The DDP_* operation of a name, of one of Julia's functions, or of itself."
op_of(::typeof(+)) = LibDDP.DDP_SUM
op_of(::typeof(*)) = LibDDP.DDP_PROD
op_of(::typeof(min)) = LibDDP.DDP_MIN
op_of(::typeof(max)) = LibDDP.DDP_MAX
function op_of(op)
    op isa Integer && LibDDP.DDP_SUM <= op <= LibDDP.DDP_MAX && return Int32(op)
    for (name, code) in OPS
        name === op && return code
    end
    throw(ArgumentError("op: $op is no operation; there are :sum, :avg, :prod, :min, :max, +, *, min and max"))
end

"A string, vector or other bytes for the store."
bytes_of(what, value::AbstractString) = Vector{UInt8}(codeunits(value))
bytes_of(what, value::Vector{UInt8}) = value
bytes_of(what, value::AbstractVector{UInt8}) = Vector{UInt8}(value)
bytes_of(what, other) = throw(ArgumentError("$what: bytes or a string are expected, not a $(typeof(other))"))

"Copies text that C gave, and frees it."
function take_text(given::Ptr{UInt8})
    copied = unsafe_string(given)
    LibDDP.ddp_free(given)
    return copied
end

"Copies bytes that C gave, and frees them."
function take_bytes(given::Ptr{Cvoid}, size::Csize_t, free::F) where {F}
    copied = Vector{UInt8}(undef, size)
    GC.@preserve copied unsafe_copyto!(pointer(copied), Ptr{UInt8}(given), size)
    free(given)
    return copied
end
