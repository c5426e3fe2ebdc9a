# Shards: each rank updates a share of the parameters (ddp/shard.h).

"""
Elements of a `parameter` that this rank owns: those of the indices `range` of the whole array. `value` and `gradient` are views on them;
`gradient` is the mean after `finalize!`. `replicated`: all ranks own them.
"""
struct Piece
    parameter::Parameter
    range::UnitRange{Int}
    replicated::Bool
    value::Any
    gradient::Any
end
Base.show(io::IO, piece::Piece) = print(io, "Piece($(repr(piece.parameter.name)), $(piece.range))")

const SHARD_OWNERS = (elements=LibDDP.DDP_OWNER_ELEMENTS, whole=LibDDP.DDP_OWNER_WHOLE, replicated=LibDDP.DDP_OWNER_REPLICATED)

"""
    set_owner!(ctx, parameter, owner; cost=0)

Before `commit!`, and alike on all ranks. `owner`: :elements: each rank owns a range of them, as from the beginning; :whole: one rank owns
the parameter, for optimizers that need whole matrices; :replicated: all ranks own it, for small ones. `cost`: with :whole, of an update,
beside the other such parameters; 0: the number of elements.
"""
function set_owner!(ctx::Context, parameter::Parameter, owner::Symbol; cost::Real=0)
    haskey(SHARD_OWNERS, owner) || throw(ArgumentError("owner: there is no $owner; there are :elements, :whole and :replicated"))
    return call(LibDDP.ddp_set_owner, ctx.handle, index_of(ctx, parameter), Int32(SHARD_OWNERS[owner]), Float64(cost))
end

"""
    DDP.pieces(ctx) -> Vector{DDP.Piece}

This rank's, in the order of parameters: at most one of each. They stay until `set_group!`; arrays that are kept longer are harmless.
"""
pieces(ctx::Context) = [piece_of(ctx, Int32(i)) for i in 0:(ask(LibDDP.ddp_piece_count, ctx.handle) - 1)]

function piece_of(ctx::Context, index::Int32)
    told = Ref{LibDDP.ddp_piece}()
    GC.@preserve told begin
        unsafe_store!(Ptr{Csize_t}(raw(told)), sizeof(LibDDP.ddp_piece))
        call(LibDDP.ddp_piece_get, ctx.handle, index, told)
    end
    found = told[]
    parameter = ctx.parameters[found.param + 1]
    parameter.device == CPU || throw(ArgumentError("$(repr(parameter.name)) is on $(parameter.device), and pieces are arrays of the CPU"))
    range = (Int(found.first) + 1):Int(found.first + found.count)
    gradient = parameter.grad === nothing ? grad_view(ctx, parameter) : parameter.grad
    return Piece(parameter, range, found.replicated == 1, view(vec(parameter.data), range), view(vec(gradient), range))
end

"""
    publish!(ctx)

After the update, on every rank and in each synced step: sends the values of this rank's pieces to the others. Gradients that live in
buckets are gone.
"""
publish!(ctx::Context) = call(LibDDP.ddp_publish, ctx.handle)

"Waits until the parameter has its new value on this rank."
wait_value(ctx::Context, parameter::Parameter) = call(LibDDP.ddp_wait_value, ctx.handle, index_of(ctx, parameter))

# SAVING AND LOADING (ddp/shard_state.h)

"""
    ShardArray(key, piece, array)
    ShardArray(key, parameter, array)

Numbers for the elements of a piece, or for all elements of a parameter, alike on all ranks that give them. `key` is their kind, such as
"value" or "exp_avg".
"""
struct ShardArray
    key::String
    parameter::Parameter
    first::Int        # elements of the parameter before them
    replicated::Bool
    data::Any
end
function ShardArray(key, piece::Piece, array::AbstractArray)
    length(array) == length(piece.range) || throw(ArgumentError("$key of $(piece.parameter.name): there are $(length(array)) elements, " *
                                                                "and $(length(piece.range)) in the piece"))
    return ShardArray(String(key), piece.parameter, first(piece.range) - 1, piece.replicated, array)
end
ShardArray(key, parameter::Parameter, array::AbstractArray) = ShardArray(String(key), parameter, 0, true, array)
Base.show(io::IO, array::ShardArray) =
    print(io, "ShardArray($(repr(array.key)), $(repr(array.parameter.name)), $(length(array.data)) elements from $(array.first))")

"""
    save_shards(ctx, folder, arrays; note="")

On all ranks: saves the arrays as safetensors in a folder that all ranks see, from which any number of ranks can load. `arrays` are
`ShardArray`s, such as those of `optimizer_state`, and `[ShardArray("value", piece, piece.value) for piece in DDP.pieces(ctx)]`. `note`:
text that `load_shards!` gives back, such as the step; alike on all ranks. If it fails, the folder holds the save before.
"""
function save_shards(ctx::Context, folder::AbstractString, arrays; note::AbstractString="")
    kept = name_arrays(ctx, arrays)
    GC.@preserve kept call(LibDDP.ddp_shard_save, ctx.handle, String(folder), String(note))
    return nothing
end

"""
    load_shards!(ctx, folder, arrays) -> note

On all ranks: fills the arrays from what `save_shards` has saved, in any world. Values that are loaded reach all ranks. One rank gets
whole parameters with `ShardArray(key, parameter, array)`, while the others pass `[]`.
"""
function load_shards!(ctx::Context, folder::AbstractString, arrays)
    kept, note = name_arrays(ctx, arrays), Ref{Ptr{UInt8}}(C_NULL)
    return GC.@preserve kept call(LibDDP.ddp_shard_load, ctx.handle, String(folder), note; keep=() -> take_text(note[]))
end

"Names the arrays for the next call, until which they must stay. All are checked before: that call forgets what was named."
function name_arrays(ctx::Context, arrays)
    for each in arrays
        each.data isa DeviceArray && throw(ArgumentError("$(each.key) of $(each.parameter.name): it is on a device; give a copy on the CPU"))
    end
    given = [(each, index_of(ctx, each.parameter), memory_of("$(each.key) of $(each.parameter.name)", each.data, code_of(each)))
             for each in arrays]
    for (each, index, memory) in given
        call(LibDDP.ddp_shard_array, ctx.handle, each.key, index, Int64(each.first), Int64(length(memory)), memory.dtype, memory.pointer,
             Int32(each.replicated))
    end
    return given
end
code_of(array::ShardArray) = eltype(array.data) === UInt16 ? LibDDP.DDP_BF16 : nothing
