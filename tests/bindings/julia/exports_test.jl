# The low-level module has every function that the library exports, every constant and every struct of the headers, and its structs
# have C's layout: that of tests/abi/layout.c, which the C compiler checks. The package has the extensions that it names.
using DDP, Test, Libdl
import Pkg
using DDP: version

const SOURCE = ENV["DDP_SOURCE"]
const C = DDP.LibDDP

@testset "functions" begin
    exported = split(read(joinpath(SOURCE, "abi", "ddp.symbols"), String))
    @test length(exported) > 100
    @test filter(name -> !isdefined(C, Symbol(name)), exported) == []
    library = Libdl.dlopen(C.libddp)
    calls = [String(name) for name in names(C; all=true) if getfield(C, name) isa Function && startswith(String(name), "ddp_")]
    @test sort(calls) == sort(String.(exported))
    @test all(name -> Libdl.dlsym(library, name; throw_error=false) !== nothing, calls)
    @test version() == VersionNumber(C.DDP_VERSION_MAJOR, C.DDP_VERSION_MINOR, C.DDP_VERSION_PATCH)
end

@testset "constants" begin
    folder = joinpath(SOURCE, "include", "ddp")
    headers = join(read(joinpath(folder, name), String) for name in readdir(folder) if endswith(name, ".h"))
    text = replace(headers, r"/\*.*?\*/"s => "")
    named = [String(each.match) for body in eachmatch(r"\benum \{(.*?)\}"s, text) for each in eachmatch(r"\bDDP_\w+", body[1])]
    @test length(named) > 50
    @test filter(name -> !isdefined(C, Symbol(name)) || !(getfield(C, Symbol(name)) isa Union{Int32,UInt32}), named) == []
    @test (C.DDP_ERROR_NONFINITE, C.DDP_CONTEXT_CONSENSUS_ORDER, C.DDP_C128) == (-20, 1 << 10, 9)
end

@testset "layouts" begin
    table = read(joinpath(SOURCE, "tests", "abi", "layout.c"), String)
    structs = Dict(Symbol(each[1]) => parse(Int, each[2]) for each in eachmatch(r"^SIZE\((\w+), (\d+)\);"m, table))
    fields = [(Symbol(each[1]), Symbol(each[2]), parse(Int, each[3]))
              for each in eachmatch(r"^FIELD\((\w+),\s+(\w+),\s+(\d+)\);"m, table)]
    @test length(structs) > 10 && length(fields) > 100
    for (name, bytes) in structs
        @test (name, sizeof(getfield(C, name))) == (name, bytes)
        @test fieldcount(getfield(C, name)) == count(each -> each[1] == name, fields)
    end
    for (name, field, at) in fields
        type = getfield(C, name)
        @test (name, field, fieldoffset(type, findfirst(==(field), fieldnames(type)))) == (name, field, at)
    end
end

# Julia 1.5 loads no extensions. It can read them, and tests/bindings/julia/optimisers.jl runs one.
@testset "extensions" begin
    package = joinpath(dirname(pathof(DDP)), "..")
    project = Pkg.TOML.parsefile(joinpath(package, "Project.toml"))
    extensions = project["extensions"]
    @test sort(readdir(joinpath(package, "ext"))) == sort(readdir(joinpath(SOURCE, "bindings", "julia", "ext"))) ==
          sort(["$name.jl" for name in keys(extensions)])
    @test sort(collect(keys(project["weakdeps"]))) == sort(unique(vcat(values(extensions)...)))
    for (package, uuid) in project["weakdeps"]
        @test project["extras"][package] == uuid && haskey(project["compat"], package)  # Julia before 1.9 knows only these
    end
    for (name, triggers) in extensions
        text = read(joinpath(package, "ext", "$name.jl"), String)
        parsed, next = Meta.parse(text, 1)
        @test Meta.isexpr(parsed, :module) && parsed.args[2] === Symbol(name)
        @test Meta.parse(text, next)[1] === nothing
        used = [String(each[1]) for each in eachmatch(r"^(?:using|import) (\w+)"m, text)]
        @test sort(setdiff(used, ["DDP"])) == sort(triggers)
    end
end
