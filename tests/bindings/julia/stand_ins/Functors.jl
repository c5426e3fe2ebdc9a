# A stand-in for Functors.jl, which needs a newer Julia than the tests have: as much of its documented interface as bindings/julia/ext uses.
__precompile__(false)
module Functors

export @leaf

macro leaf(type)
    :(Functors.functor(::Type{<:$(esc(type))}, x) = ((), _ -> x))
end

functor(type, x) =
    isempty(fieldnames(type)) ? ((), _ -> x) :
    (NamedTuple{fieldnames(type)}(Tuple(getfield(x, name) for name in fieldnames(type))), y -> Base.typename(type).wrapper(y...))
functor(x) = functor(typeof(x), x)
functor(::Type{<:Union{Tuple,NamedTuple,AbstractDict,AbstractArray}}, x) = (x, identity)
@leaf Union{Type,Number,AbstractString,AbstractArray{<:Number}}

children(x) = functor(x)[1]
isleaf(x) = children(x) === ()

end
