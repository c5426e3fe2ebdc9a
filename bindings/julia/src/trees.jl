# Models as trees: named tuples, tuples, dictionaries and vectors, in each other, with arrays at the ends. Lux has its parameters so,
# and Zygote its gradients.

# The leaves that are trained. Other things in a tree stay as they are.
const Trained = Union{AbstractFloat,Complex,AbstractArray{<:Union{AbstractFloat,Complex}}}
const Branch = Union{NamedTuple,Tuple,AbstractDict,AbstractVector}

"""
A tree with f(path, leaf, others...) in place of each leaf. `others`: what other trees have there; `nothing` in one stands for a whole
branch.
"""
map_leaves(f, path::String, leaf, others...) = f(path, leaf, others...)
function map_leaves(f, path::String, tree::Branch, others...)
    tree isa AbstractVector{<:Number} && return f(path, tree, others...)
    foreach(other -> refuse_more(path, tree, other), others)
    function at(key)
        inner = join_path(path, tree, key)
        return map_leaves(f, inner, tree[key], (child(inner, other, key) for other in others)...)
    end
    return rebuilt(tree, at)
end

rebuilt(tree::NamedTuple, at) = NamedTuple{keys(tree)}(Tuple(at(key) for key in keys(tree)))
rebuilt(tree::Tuple, at) = Tuple(at(i) for i in 1:length(tree))
rebuilt(tree::AbstractVector, at) = [at(i) for i in eachindex(tree)]
# In an order that is the same on every rank.
rebuilt(tree::AbstractDict, at) = Dict(key => at(key) for key in sort!(collect(keys(tree)); by=string))

# Names are those of Python and Java, so that ranks in all languages train one model: lists count from 0.
join_path(path, tree, key) = string(isempty(path) ? "" : "$path.", tree isa Union{Tuple,AbstractVector} ? key - 1 : key)

"A part of another tree that this one does not have would be left out without a word."
refuse_more(path, tree, other) = nothing
function refuse_more(path, tree, other::Branch)
    for key in keys(other)
        there = tree isa Union{Tuple,AbstractVector} ? key in eachindex(tree) : haskey(tree, key)
        there || other[key] === nothing || throw(ArgumentError("the tree has $(join_path(path, other, key)), which params does not have"))
    end
end

child(inner, ::Nothing, key) = nothing
function child(inner, tree, key)
    there = tree isa Branch && (tree isa Tuple || tree isa AbstractVector ? key isa Integer && key <= length(tree) : haskey(tree, key))
    there || throw(ArgumentError("the tree has no $inner"))
    return tree[key]
end

"""
    tree_of(model, trained)

The arrays of a struct as a tree, with `nothing` for everything else in it; `nothing` if it has no arrays. `trained`: only those that
an optimizer changes. ext/DDPOptimisersExt.jl defines it; without that a struct is a leaf like any other.
"""
function tree_of end
arrays_in(leaf, trained::Bool) = applicable(tree_of, leaf, trained) ? tree_of(leaf, trained) : nothing

dense(leaf::Number) = fill(leaf)
dense(leaf::AbstractArray) = Array(leaf)
# The array as a new one of the leaf's kind: on a GPU, if the leaf is there.
like(leaf::Number, array) = array[]
like(leaf::Array, array) = copy(array)
like(leaf::AbstractArray, array) = copyto!(similar(leaf), array)
# A leaf without memory of its own to write to, such as an array of StaticArrays, is a value like a number.
overwritten(leaf::Number, array) = array[]
overwritten(leaf::AbstractArray, array) = leaf === array ? leaf : isbits(leaf) ? like(leaf, array) : copyto!(leaf, array)

"""
    DataParallel(params, group=Group(); options...)

Averages trees of gradients over the ranks of a group.

    parallel = DataParallel(params)                         # ddprun -n 2 julia train.jl
    params = parallel.params                                # every rank starts from rank 0's
    grads = mean_gradients(parallel, gradient(loss, params)[1])

`params`: named tuples, tuples, dictionaries and vectors, in each other, of arrays and numbers. Arrays of floating-point or complex
numbers are overwritten with rank 0's values. `parallel.params` is the same tree, with rank 0's numbers too. Anything else stays what
it is. With Optimisers.jl loaded, `params` may be or contain structs, such as a model of Flux: their trainable arrays are parameters.
The options are those of `Context`, which is `parallel.context`. That has the first values only of parameters for which the program
has new arrays or numbers later. So `verify_interval`, `average_parameters!`, `Averager`, `add_context!` and `join!` refuse it. So does `no_sync`: add gradients up, and give
`mean_gradients` the sum.
"""
struct DataParallel
    group::Group
    context::Context
    params::Any
    places::Any  # the tree, with parameter => leaf at the ends, and `nothing` where nothing is trained
    finds_unused::Bool
end

function DataParallel(params, group::Group=Group(); find_unused::Bool=false, static_graph::Bool=false, verify_interval::Integer=0,
                      options...)
    verify_interval == 0 || refuse_first_values("verify_interval")
    ctx = Context(group; find_unused=find_unused, static_graph=static_graph, options...)
    ctx.first_values = true
    places = map_leaves((path, leaf) -> placed(ctx, path, leaf), "", params)
    isempty(ctx.parameters) && throw(ArgumentError("params: the tree has no floating-point numbers"))
    commit!(ctx)
    started = map_leaves((path, leaf, place) -> settled(leaf, place), "", params, places)
    return DataParallel(group, ctx, started, places, find_unused || static_graph)
end

placed(ctx, path, leaf::Trained) =
    register!(ctx, isempty(path) ? "params" : path, leaf isa Array ? leaf : dense(leaf)) => leaf
function placed(ctx, path, leaf)
    tree = arrays_in(leaf, true)
    return tree === nothing ? nothing : map_leaves((path, leaf) -> placed(ctx, path, leaf), path, tree)
end

settled(leaf, ::Nothing) = leaf
settled(leaf, (parameter, _)::Pair) = overwritten(leaf, parameter.data)
function settled(leaf, places)  # of a struct
    map_leaves((path, place) -> place === nothing || settled(place.second, place), "", places)
    return leaf
end

"""
    mean_gradients(parallel, grads)

The mean over ranks of a tree of gradients that has the structure of `parallel.params`. `nothing` in it stands for zeros, as in
Zygote's gradients. With `find_unused=true`, what is `nothing` on every rank stays `nothing`, and an optimizer leaves it alone.
Collective: it begins and ends a step. The arrays that it returns are the program's own.
"""
function mean_gradients(parallel::DataParallel, grads)
    ctx, found = parallel.context, []
    map_leaves("", parallel.places, grads) do path, place, grad
        place === nothing || push!(found, place.first => checked_gradient(path, place.second, grad, parallel.finds_unused))
    end
    step_begin!(ctx)
    for (parameter, grad) in Iterators.reverse(found)
        grad === nothing || put!(ctx, parameter, grad)
    end
    finalize!(ctx)
    return map_leaves("", parallel.places) do path, place
        place === nothing || parallel.finds_unused && !param_used(ctx, place.first) ? nothing :
        like(place.second, grad_view(ctx, place.first))
    end
end

function checked_gradient(path, param, grad, finds_unused)
    grad === nothing && return finds_unused ? nothing : zero(dense(param))
    grad isa Trained || throw(ArgumentError("grads: at $path there is a $(typeof(grad)) and no gradient"))
    size(grad) == size(param) && eltype(grad) === eltype(param) ||
        throw(ArgumentError("grads: $path is $(eltype(grad)) of size $(size(grad)), the parameter $(eltype(param)) of size $(size(param))"))
    return grad isa Array ? grad : dense(grad)
end

Base.close(parallel::DataParallel) = close(parallel.context)

"""
    DistributedOptimizer(group, rule)

A rule of Optimisers.jl that applies `rule` to the mean over ranks of each gradient. It takes the place of `rule` in
`Optimisers.setup`, and so in Flux and Lux. Needs Optimisers.jl loaded. As Lux.DistributedUtils.DistributedOptimizer.

Each array is averaged alone, in a blocking call: `mean_gradients` is faster for small arrays. In each step the same arrays must have a
gradient on every rank. Put other rules inside, `DistributedOptimizer(group, OptimiserChain(...))`: `Optimisers.adjust!` does not reach
a DistributedOptimizer inside a chain.
"""
DistributedOptimizer(group::Group, rule) =
    throw(ArgumentError("rule: a $(typeof(rule)) is no rule of Optimisers.jl, or Optimisers.jl is not loaded"))

"The mean over ranks of one gradient, in a new array. A rule may be given a gradient that is not yet computed."
function averaged(group::Group, gradient)
    computed = Broadcast.materialize(gradient)
    array = dense(computed)
    allreduce!(group, array, :avg)
    return computed isa Array ? array : like(computed, array)
end

"""
    synchronize!!(group, tree; root=0)

The numbers of rank `root`, on every rank: for state that is not trained, and for that of an optimizer. Arrays are overwritten where they
can be. Returns the tree; use that, because numbers in a tree cannot be overwritten. With Optimisers.jl loaded, the tree may contain
structs: their arrays are overwritten, and their numbers stay. Collective. As Lux.DistributedUtils.synchronize!!.
"""
synchronize!!(group::Group, tree; root::Integer=0) = map_leaves((path, leaf) -> shared(group, leaf, root), "", tree)

function shared(group, leaf::Union{Number,AbstractArray{<:Number}}, root)
    isbitstype(eltype(leaf)) && sizeof(eltype(leaf)) > 0 || return leaf
    array = leaf isa Array ? leaf : dense(leaf)
    bcast!(group, reinterpret(UInt8, vec(array)); root=root)  # as bytes: libddp knows few types
    return overwritten(leaf, array)
end
function shared(group, leaf, root)
    tree = arrays_in(leaf, false)
    tree === nothing || synchronize!!(group, tree; root=root)
    return leaf
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
