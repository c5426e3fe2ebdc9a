# The rendezvous store: a small key-value service that the ranks of a job share (ddp/store.h).

"""
    Store(uri; server=false, timeout=nothing, secret=nothing, insecure=false)

A connection to a store. `uri`: "tcp://host:port", "file:///absolute/path" or "etcd://host:port/name". `server`: this process also
runs the server (tcp only; port 0 takes a free one, see `store.port`). `secret` and `insecure` are those of ddp_store_options. Keys are strings. Values are bytes: `Vector{UInt8}`, or a string where they are
given. Times are in seconds; `nothing` is the default.

    store["key"] = "value"            sets it
    store["key"], get(store, "key")   wait until it exists; get takes a timeout
    haskey(store, key), delete!(store, key), keys(store; prefix=""), wait(store, keys; timeout)
    add!(store, key, number), compare_set!(store, key, expected, desired)
    close(store)
"""
struct Store
    handle::Handle
end

function Store(uri::AbstractString; server::Bool=false, timeout=nothing, secret=nothing, insecure::Bool=false)
    uri, secret = String(uri), secret === nothing ? nothing : String(secret)
    made = Ref{Ptr{ddp_store}}()
    GC.@preserve uri secret begin
        settings = options(LibDDP.ddp_store_options_init_sized, LibDDP.ddp_store_options,
                           (uri=text("uri", uri), is_server=Int32(server), timeout_ms=milliseconds(timeout),
                            secret=text("secret", secret), flags=insecure * LibDDP.DDP_STORE_INSECURE))
        return call(LibDDP.ddp_store_create, Ref(settings), made; keep=() -> Store(Handle(STORE, made[])))
    end
end
Store(f::Function, args...; keywords...) = closing(f, Store(args...; keywords...))

"Runs f with something that is closed afterwards."
function closing(f, object)
    try
        return f(object)
    finally
        close(object)
    end
end

Base.close(store::Store) = close(store.handle)
Base.isopen(store::Store) = isopen(store.handle)
Base.propertynames(::Store) = (:port,)
Base.getproperty(store::Store, name::Symbol) =
    name === :port ? Int(ask(LibDDP.ddp_store_port, getfield(store, :handle))) : getfield(store, name)

function bytes_from(f::F, handle::Handle, args...) where {F}
    value, size = Ref{Ptr{Cvoid}}(C_NULL), Ref{Csize_t}(0)
    return call(f, handle, args..., value, size; keep=() -> take_bytes(value[], size[], LibDDP.ddp_free))
end

"What wrap makes of the number or pointer that f gives."
function made_from(wrap::W, f::F, ::Type{T}, handle::Handle, args...) where {W,F,T}
    result = Ref{T}(0)
    return call(f, handle, args..., result; keep=() -> wrap(result[]))
end

function number_from(f::F, ::Type{T}, handle::Handle, args...) where {F,T}
    number = Ref{T}(0)
    call(f, handle, args..., number)
    return number[]
end

# A vector of strings as C takes it, and the strings.
function texts(what, given)
    kept = String[String(each) for each in given]
    return kept, Cstring[text(what, each) for each in kept]
end

function Base.setindex!(store::Store, value, key::AbstractString)
    bytes = bytes_of("value", value)
    call(LibDDP.ddp_store_set, store.handle, String(key), bytes, Csize_t(length(bytes)))
    return store
end
Base.get(store::Store, key::AbstractString; timeout=nothing) =
    bytes_from(LibDDP.ddp_store_get, store.handle, String(key), milliseconds(timeout))
Base.getindex(store::Store, key::AbstractString) = get(store, key)

"Sets key to `desired` if its value is `expected` (\"\": or the key is missing). Returns the value that key then has."
function compare_set!(store::Store, key::AbstractString, expected, desired)
    old, new = bytes_of("expected", expected), bytes_of("desired", desired)
    return bytes_from(LibDDP.ddp_store_compare_set, store.handle, String(key), old, Csize_t(length(old)), new,
                      Csize_t(length(new)))
end

"Adds to the decimal integer under key, and returns the sum."
add!(store::Store, key::AbstractString, amount::Integer) =
    number_from(LibDDP.ddp_store_add, Int64, store.handle, String(key), Int64(amount))

"Whether all keys exist now."
function Base.haskey(store::Store, keys::AbstractString...)
    kept, list = texts("key", keys)
    return GC.@preserve kept number_from(LibDDP.ddp_store_check, Int32, store.handle, list, Csize_t(length(list))) == 1
end

"Waits until all keys exist."
function Base.wait(store::Store, keys; timeout=nothing)
    kept, list = texts("key", keys isa AbstractString ? (keys,) : keys)
    GC.@preserve kept call(LibDDP.ddp_store_wait, store.handle, list, Csize_t(length(list)), milliseconds(timeout))
    return nothing
end

"Deletes a key. Returns whether it existed."
Base.delete!(store::Store, key::AbstractString) =
    number_from(LibDDP.ddp_store_delete, Int32, store.handle, String(key)) == 1

"The keys that begin with prefix, sorted."
Base.keys(store::Store; prefix::AbstractString="") =
    String.(split(String(bytes_from(LibDDP.ddp_store_list_keys, store.handle, String(prefix))), '\0')[1:(end - 1)])
