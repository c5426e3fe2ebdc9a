# Models as trees: named tuples, tuples, dictionaries and vectors, in each other, with arrays at the ends. Lux has its parameters so,
# and Zygote its gradients.

# What is trained. Other things in a tree stay what they are.
const Trained = Union{AbstractFloat,Complex,AbstractArray{<:Union{AbstractFloat,Complex}}}
# What is state: such a thing of rank 0 replaces those of other ranks.
const Shared = Union{Trained,Int32,Int64,UInt8,AbstractArray{<:Union{Int32,Int64,UInt8}}}
const Branch = Union{NamedTuple,Tuple,AbstractDict,AbstractVector}

"""
A tree with f(path, leaf, others...) in place of each leaf of type `Kind`. `others`: what other trees have there; `nothing` in one stands
for a whole branch.
"""
map_leaves(f, Kind::Type, path::String, leaf, others...) = leaf isa Kind ? f(path, leaf, others...) : leaf
function map_leaves(f, Kind::Type, path::String, tree::Branch, others...)
    tree isa Kind && return f(path, tree, others...)
    tree isa AbstractVector{<:Number} && return tree
    at(key) = map_leaves(f, Kind, isempty(path) ? "$key" : "$path.$key", tree[key], (child(path, other, key) for other in others)...)
    return rebuilt(tree, at)
end

rebuilt(tree::NamedTuple, at) = NamedTuple{keys(tree)}(Tuple(at(key) for key in keys(tree)))
rebuilt(tree::Tuple, at) = Tuple(at(i) for i in 1:length(tree))
rebuilt(tree::AbstractVector, at) = [at(i) for i in eachindex(tree)]
# In an order that is the same on every rank.
rebuilt(tree::AbstractDict, at) = Dict(key => at(key) for key in sort!(collect(keys(tree)); by=string))

child(path, ::Nothing, key) = nothing
function child(path, tree, key)
    there = tree isa Branch && (tree isa Tuple || tree isa AbstractVector ? key isa Integer && key <= length(tree) : haskey(tree, key))
    there || throw(ArgumentError("the tree has no $key at $(isempty(path) ? "its root" : path)"))
    return tree[key]
end

dense(leaf::Number) = fill(leaf)
dense(leaf::AbstractArray) = Array(leaf)
like(leaf::Number, array) = array[]
like(leaf::AbstractArray, array) = array

"""
    DataParallel(params, group=Group(); options...)

Averages trees of gradients over the ranks of a group.

    parallel = DataParallel(params)                         # ddprun -n 2 julia train.jl
    params = parallel.params                                # every rank starts from rank 0's
    grads = mean_gradients(parallel, gradient(loss, params)[1])

`params`: named tuples, tuples, dictionaries and vectors, in each other, of arrays and numbers, which are copied; what is no floating-point
number stays what it is. The options are those of `Context`, which is `parallel.context`. `parallel.params` is the tree of rank 0's values,
which the program keeps itself from then on.
"""
struct DataParallel
    group::Group
    context::Context
    params::Any
end

function DataParallel(params, group::Group=Group(); options...)
    ctx = Context(group; options...)
    map_leaves((path, leaf) -> register!(ctx, path, dense(leaf)), Trained, "", params)
    isempty(ctx.parameters) && throw(ArgumentError("params: the tree has no floating-point numbers"))
    commit!(ctx)
    return DataParallel(group, ctx, in_order(params, [copy(parameter.data) for parameter in ctx.parameters]))
end

"The tree with these arrays at its leaves."
function in_order(tree, arrays)
    next = Ref(0)
    return map_leaves((path, leaf) -> like(leaf, arrays[next[] += 1]), Trained, "", tree)
end

"""
    mean_gradients(parallel, grads)

The mean over ranks of a tree of gradients that has the structure of `parallel.params`. `nothing` in it stands for zeros, as in
Zygote's gradients. Collective: it begins and ends a step. The arrays that it returns are the program's own.
"""
function mean_gradients(parallel::DataParallel, grads)
    ctx, found = parallel.context, []
    map_leaves(Trained, "", parallel.params, grads) do path, param, grad
        push!(found, checked_gradient(path, param, grad))
        return param
    end
    step_begin!(ctx)
    for (parameter, grad) in Iterators.reverse(collect(zip(ctx.parameters, found)))
        put!(ctx, parameter, grad)
    end
    finalize!(ctx)
    return in_order(parallel.params, [copy(grad_view(ctx, parameter)) for parameter in ctx.parameters])
end

function checked_gradient(path, param, grad)
    grad === nothing && return zero(dense(param))
    grad isa Trained || throw(ArgumentError("grads: at $path there is a $(typeof(grad)) and no gradient"))
    size(grad) == size(param) && eltype(grad) === eltype(param) ||
        throw(ArgumentError("grads: $path is $(eltype(grad)) of size $(size(grad)), the parameter $(eltype(param)) of size $(size(param))"))
    return dense(grad)
end

Base.close(parallel::DataParallel) = close(parallel.context)

"""
    synchronize!!(group, tree; root=0)

The numbers of rank `root`, on every rank: for state that is not trained, and for that of an optimizer. Arrays are overwritten where they
can be. Returns the tree; use that, because numbers in a tree cannot be overwritten. Collective. As Lux.DistributedUtils.synchronize!!.
"""
function synchronize!!(group::Group, tree; root::Integer=0)
    return map_leaves(Shared, "", tree) do path, leaf
        array = leaf isa Array ? leaf : dense(leaf)
        bcast!(group, array; root=root)
        return like(leaf, array)
    end
end

"""
    DistributedDataContainer(group, data)

This rank's part of a data set, of neighbouring observations: `length` and indexing, as data loaders want them. `data`: arrays, whose last
dimension counts the observations; tuples and named tuples of these; or anything with `length` and `getindex`. The last rank may
have fewer observations than the others. As Lux.DistributedUtils.DistributedDataContainer.
"""
struct DistributedDataContainer{Data}
    data::Data
    indices::UnitRange{Int}
end

function DistributedDataContainer(group::Group, data)
    count = observations(data)
    each = cld(count, group.world_size)
    return DistributedDataContainer(data, (group.rank * each + 1):min(count, (group.rank + 1) * each))
end

observations(data) = length(data)
observations(data::AbstractArray) = ndims(data) == 0 ? 1 : size(data, ndims(data))
function observations(data::Union{Tuple,NamedTuple})
    counts = unique(map(observations, values(data)))
    length(counts) == 1 || throw(ArgumentError("data: its parts have $(join(counts, " and ")) observations"))
    return counts[1]
end
observed(data, indices) = data[indices]
observed(data::AbstractArray, indices) = data[ntuple(_ -> Colon(), ndims(data) - 1)..., indices]
observed(data::Union{Tuple,NamedTuple}, indices) = map(part -> observed(part, indices), data)

Base.length(container::DistributedDataContainer) = length(container.indices)
Base.lastindex(container::DistributedDataContainer) = length(container)
Base.getindex(container::DistributedDataContainer, i) = observed(container.data, container.indices[i])
Base.iterate(container::DistributedDataContainer, i=1) = i > length(container) ? nothing : (container[i], i + 1)
