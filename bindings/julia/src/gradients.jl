# Where gradients live, and gradients of other kinds than "written into its place".

"""
    grad_view(ctx, parameter)

The gradient's place in its bucket, as an array. Write the gradient there, and nothing is ever copied. Valid until
`layout_generation` changes, in `step_begin!`. An array that is kept longer is harmless, but no longer the gradient. For
a parameter on a GPU it is a `DDP.DeviceArray`.
"""
function grad_view(ctx::Context, parameter::Parameter)
    address = number_from(LibDDP.ddp_grad_view, Ptr{Cvoid}, ctx.handle, index_of(ctx, parameter))
    return array_over(address, parameter.grad_dtype, parameter.dims, layout(ctx), parameter.device)
end

"What keeps the memory of views, as it is now."
function layout(ctx::Context)
    generation = layout_generation(ctx)
    if ctx.layout === nothing || ctx.generation != generation
        ctx.layout = made_from(held -> Handle(LAYOUT, held), LibDDP.ddp_layout_hold, Ptr{ddp_layout}, ctx.handle)
        append!(ctx.layout.kept, ctx.in_place)
        ctx.generation = generation
    end
    return ctx.layout
end

"Grows when views move."
layout_generation(ctx::Context) = ask(LibDDP.ddp_layout_generation, ctx.handle)

"""
    put!(ctx, parameter, gradient; add=false)

Copies a gradient to its place (the registered `grad`, or its view), and announces it. `add`: adds to what was put since
the last synced step, in `no_sync` and for a parameter with several uses. Otherwise it replaces that.
"""
function Base.put!(ctx::Context, parameter::Parameter, gradient::AbstractArray; add::Bool=false)
    parameter.device == CPU ||
        throw(ArgumentError("parameter: $(repr(parameter.name)) is on $(parameter.device), and put! copies memory of the CPU; give " *
                            "an array there to put_on!"))
    size(gradient) == parameter.dims ||
        throw(ArgumentError("$(parameter.name): gradient: its size is $(size(gradient)), but $(parameter.dims) is expected"))
    eltype(gradient) === julia_type(parameter.grad_dtype) ||
        throw(ArgumentError("$(parameter.name): gradient: its elements are $(eltype(gradient)), but $(type_name(parameter.grad_dtype)) is expected"))
    dense = gradient isa Array ? gradient : Array(gradient)
    given = memory_of("$(parameter.name): gradient", dense, parameter.grad_dtype)
    GC.@preserve dense call(LibDDP.ddp_put, ctx.handle, index_of(ctx, parameter), given.pointer,
                            UInt32(add * LibDDP.DDP_PUT_ADD))
    return nothing
end

"""
    grad_ready_sparse(ctx, parameter, indices, values)

The gradient of a parameter of size (..., n) is zero except in these of its n slices along the last dimension (columns
of a matrix): values[..., i] is that of slice indices[i], from 1 to n. Both are copied.
"""
function grad_ready_sparse(ctx::Context, parameter::Parameter, indices::AbstractVector{<:Integer}, values)
    from_zero = Int64[index - 1 for index in indices]
    what = "$(parameter.name): values"
    given = memory_of(what, values, parameter.grad_dtype)
    same_layout(what, given, (parameter.dims[1:(end - 1)]..., length(indices)), parameter.grad_dtype)
    GC.@preserve values call(LibDDP.ddp_grad_ready_sparse, ctx.handle, index_of(ctx, parameter), from_zero, given.pointer,
                             Csize_t(length(from_zero)))
end

"""
    sparse_gradient(ctx, parameter) -> indices, values

The reduced gradient of a sparse parameter: copies of the indices, from 1, and of the slices.
"""
function sparse_gradient(ctx::Context, parameter::Parameter)
    indices, values, count = Ref{Ptr{Int64}}(C_NULL), Ref{Ptr{Cvoid}}(C_NULL), Ref{Csize_t}(0)
    call(LibDDP.ddp_sparse_gradient, ctx.handle, index_of(ctx, parameter), indices, values, count)
    type = julia_type(parameter.grad_dtype)
    slices = Array{type}(undef, parameter.dims[1:(end - 1)]..., Int(count[]))
    GC.@preserve slices unsafe_copyto!(pointer(slices), Ptr{type}(values[]), length(slices))
    return Int64[unsafe_load(indices[], i) + 1 for i in 1:count[]], slices
end

"""
    grad_ready_factors(ctx, parameter, left, right)

The gradient, an n x m matrix, is left * right': `left` is n x k and `right` m x k, with a column for each sample. For a dense layer with
weights W (y = W * x) left is the gradient of its outputs y and right its inputs x. (Of a parameter with more dimensions m is the last
one, and n the product of the others.) Both are copied.
"""
function grad_ready_factors(ctx::Context, parameter::Parameter, left, right)
    whats = "$(parameter.name): left", "$(parameter.name): right"
    a, b = memory_of(whats[1], left, parameter.grad_dtype), memory_of(whats[2], right, parameter.grad_dtype)
    isempty(parameter.dims) && throw(ArgumentError("parameter: a scalar has no factors"))
    m, n = parameter.dims[end], prod(parameter.dims[1:(end - 1)])
    k = length(a.dims) == 2 ? a.dims[2] : -1
    same_layout(whats[1], a, (n, k), parameter.grad_dtype)
    same_layout(whats[2], b, (m, k), parameter.grad_dtype)
    # To C, where rows are what columns are here, the gradient is an m x n matrix: right and left change places.
    GC.@preserve left right call(LibDDP.ddp_grad_ready_factors, ctx.handle, index_of(ctx, parameter), b.pointer, a.pointer,
                                 Csize_t(k))
end
