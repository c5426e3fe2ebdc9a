# A stand-in for Optimisers.jl, which needs a newer Julia than the tests have: as much of its documented interface as bindings/julia/ext
# and its tests use.
__precompile__(false)
module Optimisers

using Functors

abstract type AbstractRule end
function init end
function apply! end
adjust(rule::AbstractRule, eta::Real) = adjust(rule; eta=eta)
adjust(rule::AbstractRule; changes...) =
    typeof(rule)((get(changes, name, getfield(rule, name)) for name in fieldnames(typeof(rule)))...)

mutable struct Leaf{Rule,State}
    rule::Rule
    state::State
    frozen::Bool
end

isnumeric(x) = x isa AbstractArray{<:Number} && !(x isa AbstractArray{<:Integer})
trainable(x) = Functors.children(x)

"One leaf for each array, however often the model has it."
function setup(rule, model, leaves=IdDict())
    isnumeric(model) && return get!(() -> Leaf(rule, init(rule, model), false), leaves, model)
    Functors.isleaf(model) && return ()
    children = trainable(model)
    children isa AbstractDict && return Dict(key => setup(rule, child, leaves) for (key, child) in children)
    return map(child -> setup(rule, child, leaves), children)
end

"In the order of the tree, which is the same on every rank."
function update!(tree, model, grads)
    found = []
    gather!(found, tree, model, grads)
    for (leaf, x, dx) in found
        leaf.state, change = apply!(leaf.rule, leaf.state, x, dx)
        x .-= change
    end
    return tree, model
end

gather!(found, tree, model, ::Nothing) = nothing
gather!(found, leaf::Leaf, x, ::Nothing) = nothing
function gather!(found, leaf::Leaf, x, dx)
    known = findfirst(each -> each[1] === leaf, found)
    known === nothing ? push!(found, (leaf, x, dx)) : (found[known] = (leaf, x, found[known][3] .+ dx))
    return nothing
end
gather!(found, tree, model, grads) =
    foreach(key -> gather!(found, tree[key], Functors.children(model)[key], grads[key]), keys(tree))

adjust!(leaf::Leaf, eta::Real) = (leaf.rule = adjust(leaf.rule, eta); nothing)
adjust!(tree, eta::Real) = foreach(child -> adjust!(child, eta), tree)

end
