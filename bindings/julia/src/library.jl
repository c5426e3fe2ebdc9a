# Where libddp is, and where its functions are in it.

const PACKAGE = dirname(@__DIR__)

"""
    DDP.library_file()

The file of libddp that `using DDP` loads: the one that the environment variable DDP_LIBRARY names; else the one that
`deps/libddp` beside the package's `src` says, which the build and `cmake --install` write; else the system's.
"""
function library_file()
    named = get(ENV, "DDP_LIBRARY", "")
    isempty(named) || return abspath(named)
    note = joinpath(PACKAGE, "deps", "libddp")
    return isfile(note) ? normpath(joinpath(PACKAGE, readchomp(note))) : LibDDP.libddp
end

function load_library()
    file = library_file()
    # Not with RTLD_DEEPBIND, Julia's default, under which a library in C++ finds other allocation functions than the
    # C++ runtime does.
    loaded = try
        Libdl.dlopen(file, Libdl.RTLD_LAZY | Libdl.RTLD_LOCAL)
    catch cause
        error("libddp cannot be loaded: $(sprint(showerror, cause)). Install it, or let the environment variable ",
              "DDP_LIBRARY name the file $(LibDDP.libddp)")
    end
    if Libdl.dlopen(LibDDP.libddp, Libdl.RTLD_LAZY | Libdl.RTLD_LOCAL; throw_error=false) != loaded
        error("$file is not the library that this package is for, $(LibDDP.libddp), or another of that name was loaded before")
    end
    for (i, name) in enumerate(LibDDP.functions)
        address = Libdl.dlsym(loaded, name; throw_error=false)
        address === nothing && error("$file has no $name: it is older than this package. Install both from one version of libddp")
        LibDDP.addresses[i] = address
    end
    return nothing
end
