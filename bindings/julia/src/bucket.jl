# The bucket that communication hooks see (ddp/hook.h).

"""
A bucket of gradients on its way, valid until the step ends. A hook leaves in it what every rank's gradients become: the
mean, if `bucket.op` is DDP.AVG.

`bucket.index` counts from 0 in launch order; `is_last`, `step`, `dtype`, `op`; `buffer`: all gradients as one vector,
without a copy, with gaps of zeros (none between gradients in place); `gradients`: those of each parameter, see `Gradient`; `device`: where the bucket
lies; `stream`: for a bucket on a GPU, the handle of a stream. The gradients are there in its order, and the result must
be too.
"""
struct Bucket
    handle::Handle
    context::Context
end

"One parameter's gradient inside a bucket: `parameter` and `array`."
struct Gradient
    parameter::Parameter
    array::DenseArray
end

Base.propertynames(::Bucket) = (:index, :is_last, :step, :dtype, :op, :buffer, :gradients, :device, :stream)
function Base.getproperty(bucket::Bucket, name::Symbol)
    handle = getfield(bucket, :handle)
    name === :index && return Int(ask(LibDDP.ddp_bucket_index, handle))
    name === :is_last && return ask(LibDDP.ddp_bucket_is_last, handle) == 1
    name === :step && return Int(ask(LibDDP.ddp_bucket_step, handle))
    name === :dtype && return ask(LibDDP.ddp_bucket_dtype, handle)
    name === :op && return ask(LibDDP.ddp_bucket_op, handle)
    name === :device && return place_of(handle)
    name === :stream && return ask(LibDDP.ddp_bucket_stream, handle)
    name === :buffer && return buffer(bucket)
    name === :gradients && return [gradient(bucket, i) for i in 0:(ask(LibDDP.ddp_bucket_param_count, handle) - 1)]
    return getfield(bucket, name)
end
Base.show(io::IO, bucket::Bucket) = print(io, isopen(bucket.handle) ? "Bucket($(bucket.index))" : "Bucket(of a past step)")

function place_of(handle::Handle)
    place = ask(LibDDP.ddp_bucket_device, handle)
    return Device(place.kind, place.index)
end

function buffer(bucket::Bucket)
    count = Int(ask(LibDDP.ddp_bucket_count, bucket.handle))
    return array_over(ask(LibDDP.ddp_bucket_buffer, bucket.handle), bucket.dtype, (count,), layout(bucket.context),
                      bucket.device)
end

function gradient(bucket::Bucket, i::Integer)
    tensor = Ref{LibDDP.ddp_tensor}()
    GC.@preserve tensor unsafe_store!(Ptr{Csize_t}(raw(tensor)), sizeof(LibDDP.ddp_tensor))
    call(LibDDP.ddp_bucket_gradient, bucket.handle, Int32(i), tensor)
    told = tensor[]
    dims = Dims(unsafe_load(told.shape, d) for d in told.ndim:-1:1)
    return Gradient(bucket.context.parameters[told.param + 1],
                    array_over(told.data, told.dtype, dims, layout(bucket.context), bucket.device))
end

"""
    set_buffer!(bucket, array; dtype=nothing)

Says that the result is in this array: as many elements, in the bucket's layout, perhaps of another floating-point type. It is
kept until the hook is called for this bucket again.
"""
function set_buffer!(bucket::Bucket, array; dtype=nothing)
    memory = memory_of("array", array, dtype; on_gpu=true)
    count = ask(LibDDP.ddp_bucket_count, bucket.handle)
    length(memory) == count || throw(ArgumentError("array: it has $(length(memory)) elements, the bucket $count"))
    results, index = bucket.context.results, bucket.index
    call(LibDDP.ddp_bucket_set_buffer, bucket.handle, memory.pointer, memory.dtype; keep=() -> results[index] = held(array))
    return nothing
end
