# Julia loads this with DDP, Functors and Optimisers, which Flux and Lux load.
module DDPOptimisersExt

using DDP: DDP, Group
using Functors: Functors
using Optimisers: Optimisers, AbstractRule

# Optimisers copies a rule with the state that it belongs to. A group must not be copied.
Functors.@leaf Group

"What `DistributedOptimizer` returns."
struct DistributedRule{Rule<:AbstractRule} <: AbstractRule
    group::Group
    rule::Rule
end
DDP.DistributedOptimizer(group::Group, rule::AbstractRule) = DistributedRule(group, rule)

Optimisers.init(distributed::DistributedRule, x::AbstractArray) = Optimisers.init(distributed.rule, x)
Optimisers.apply!(distributed::DistributedRule, state, x, gradient) =
    Optimisers.apply!(distributed.rule, state, x, DDP.averaged(distributed.group, gradient))
Optimisers.adjust(distributed::DistributedRule, eta::Real) =
    DistributedRule(distributed.group, Optimisers.adjust(distributed.rule, eta))
Optimisers.adjust(distributed::DistributedRule; changes...) =
    DistributedRule(distributed.group, Optimisers.adjust(distributed.rule; changes...))

# In place: parameters that share memory share their leaf.
function DDP.shared(group, leaf::Optimisers.Leaf, root)
    leaf.state = DDP.synchronize!!(group, leaf.state; root=root)
    return leaf
end

DDP.tree_of(model, trained::Bool) = Functors.isleaf(model) ? nothing : branch(model, trained)

function branch(model, trained)
    children = Functors.children(model)
    return with_arrays(trained ? chosen(children, Optimisers.trainable(model)) : children, trained)
end

# A gradient has every field of a struct.
chosen(children::NamedTuple, trainable::NamedTuple) = merge(map(_ -> nothing, children), trainable)
chosen(children, trainable) = trainable

with_arrays(children, trained) = map(child -> arrays_of(child, trained), children)
with_arrays(children::AbstractDict, trained) = Dict(key => arrays_of(child, trained) for (key, child) in children)

function arrays_of(x, trained)
    x isa Optimisers.Leaf && return trained ? nothing : x
    x isa AbstractArray{<:Number} || return DDP.tree_of(x, trained)
    trained && !(x isa DDP.Trained) && return nothing
    isbits(x) || return x
    return trained ? throw(ArgumentError("params: a $(typeof(x)) in a struct cannot be overwritten")) : nothing
end

end
