# libddp's statuses as an exception.

"""
    DDPError

An error of libddp. `status`: a DDP.LibDDP.DDP_ERROR_* value; `message`: a sentence; `rank`: which rank caused it;
`parameter`, `bucket`: what it is about, by index from 0; `step`: in which step. Those that are not known are `nothing`.
"""
struct DDPError <: Exception
    status::Int32
    message::String
    rank::Union{Int,Nothing}
    parameter::Union{Int,Nothing}
    bucket::Union{Int,Nothing}
    step::Union{Int,Nothing}
end
DDPError(status, message) = DDPError(status, message, nothing, nothing, nothing, nothing)

"The name of a status: :DDP_ERROR_TIMEOUT."
status_name(status) = Symbol(unsafe_string(LibDDP.ddp_status_name(status)))

Base.showerror(io::IO, error::DDPError) = print(io, status_name(error.status), ": ", error.message)

known(number) = number < 0 ? nothing : Int(number)

"From an error object, which it frees."
function take_error(error::Ptr{ddp_error}, status::Int32)
    error == C_NULL && return DDPError(status, "no more is known: memory is exhausted")
    taken = DDPError(LibDDP.ddp_error_code(error), in_julia(unsafe_string(LibDDP.ddp_error_message(error))),
                     known(LibDDP.ddp_error_rank(error)), known(LibDDP.ddp_error_param(error)),
                     known(LibDDP.ddp_error_bucket(error)), known(LibDDP.ddp_error_step(error)))
    LibDDP.ddp_error_free(error)
    return taken
end
