# Misuse is an exception that says what is wrong, and never a crash.
group = alone()
exceptions() = VERSION < v"1.7" ? Base.catch_stack() : current_exceptions()

@testset "status and names" begin
    ctx = committed(alone())
    first, second = ctx.parameters
    fails(C.DDP_ERROR_INVALID_STATE, "p1") do
        grad_ready(ctx, second)
        grad_ready(ctx, second)
    end
    missing_one = fails(() -> finalize!(ctx), C.DDP_ERROR_MISSING_GRADIENT)
    @test (missing_one.parameter, missing_one.rank, missing_one.step, missing_one.bucket isa Any) == (0, 0, 0, true)
    @test occursin("DDP_ERROR_MISSING_GRADIENT: ", sprint(showerror, missing_one))
end

@testset "arguments" begin
    ctx, good = Context(group), zeros(Float32, 3)
    register!(ctx, "a", good)
    fails(() -> register!(ctx, "a"; size=1), C.DDP_ERROR_ALREADY_EXISTS, "'a'")
    refused(() -> register!(ctx, "b", good, zeros(3)), "b: grad", "Float64")
    refused(() -> register!(ctx, "b", good, zeros(Float32, 4)), "b: grad", "(4,)")
    refused(() -> register!(ctx, "b"), "b", "size")
    refused(() -> register!(ctx, "b"; size=1, dtype=Int8), "dtype", "Int8")
    refused(() -> register!(ctx, "b", good; size=(3, 1)), "data", "(3,)")
    refused(() -> register!(ctx, "b\0", good), "NUL")
    refused(() -> Context(group; reduction=:median), "reduction", "median")
    refused(() -> Group(; timeout=-1, rank=0, world_size=1), "timeout")
    fails(() -> grad_ready(ctx, ctx.parameters[1]), C.DDP_ERROR_INVALID_STATE, "call commit!")
    @test DDP.in_julia("ddp_step_begin DDP_CONTEXT_JOIN DDP_GROUP_DETERMINISTIC DDP_SECRET_FILE ddp_context_set_group") ==
          "step_begin! join=true deterministic=true DDP_SECRET_FILE set_group!"
    @test DDP.in_julia("options->flags: DDP_CONTEXT_CHECK; options->bucket_caps[1]") == "check=true; bucket_caps[1]"
    # A function that is new in C fails here until Julia has a name for it: one of the package's own, or the property of an object.
    unused = r"^ddp_(set_update|wait_value_on|abi_version|backend_register|context_param_count|param_desc_init_sized|(dtype|error|status)_\w+|\w+_options_init_sized|\w+_free)$"
    for name in filter(name -> startswith(string(name), "ddp_") && getfield(C, name) isa Function, names(C; all=true))
        word = DDP.in_julia(string(name))
        @test isempty(names_of_c(word))
        if occursin(r"^\w+!?$", word) && !occursin(unused, string(name))
            @test (name, isdefined(DDP, Symbol(word))) == (name, true)
        end
    end
    fails(() -> use_hook!(ctx, "nope"), C.DDP_ERROR_INVALID_ARGUMENT, "nope")
    fails(() -> use_hook!(ctx, "powersgd"; rank=0), C.DDP_ERROR_INVALID_ARGUMENT, "rank")
    fails(() -> Group(; rank=0, world_size=1, backend="nope"), C.DDP_ERROR_NOT_FOUND, "nope")
    commit!(ctx)
    other = committed(group)
    refused(() -> grad_ready(ctx, other.parameters[1]), "another context")
    refused(() -> put!(ctx, ctx.parameters[1], zeros(Float32, 4)), "gradient", "(4,)")
    refused(() -> put!(ctx, ctx.parameters[1], zeros(3)), "gradient", "Float64")
    @test_throws MethodError Context(ctx)
    @test !backend_available("nope") && backend_available("shm")
    refused(() -> Averager(ctx, [1, 2]; group_sizes=[1]), "group_sizes")
end

@testset "closed" begin
    ctx = Context(group)
    register!(ctx, "w", zeros(Float32, 3))  # an averager needs the values
    commit!(ctx)
    parameter, view = ctx.parameters[1], grad_view(ctx, ctx.parameters[1])
    averager = Averager(ctx, 1)
    other = alone()
    work = barrier(other; async=true)
    close(ctx)
    close(ctx)
    @test !isopen(ctx) && !isopen(averager) && occursin("closed", string(ctx))
    for misuse in (() -> grad_ready(ctx, parameter), () -> finalize!(ctx), () -> step_begin!(ctx), () -> stats(ctx),
                   () -> grad_view(ctx, parameter), () -> hook_name(ctx), () -> bucket_count(ctx), () -> step!(averager),
                   () -> averager.steps)
        fails(misuse, C.DDP_ERROR_INVALID_STATE, "closed")
    end
    view .+= 1  # its memory stays
    wait(work)
    close(other)
    close(other)
    fails(() -> barrier(other), C.DDP_ERROR_INVALID_STATE, "closed")
    fails(() -> other.rank, C.DDP_ERROR_INVALID_STATE, "closed")
    fails(() -> Context(other), C.DDP_ERROR_INVALID_STATE, "closed")
    @test occursin("closed", string(other))
    store = Store("tcp://127.0.0.1:0"; server=true)
    close(store)
    fails(() -> store["a"] = "", C.DDP_ERROR_INVALID_STATE, "closed")
    @test Context(isopen, group) && Group(isopen; rank=0, world_size=1)
end

@testset "views outlive everything" begin
    ctx = committed(group, 3; bucket_cap=24, first_bucket_cap=24)
    old = grad_view(ctx, ctx.parameters[1])
    for _ in 1:2  # the second step_begin! rebuilds the buckets in another order, and views move
        step_begin!(ctx)
        for (i, parameter) in enumerate(ctx.parameters)
            put!(ctx, parameter, fill(Float32(i), 3))
        end
        finalize!(ctx)
    end
    @test layout_generation(ctx) == 2
    new = reshape(grad_view(ctx, ctx.parameters[1]), 1, 3)
    @test pointer(old) != pointer(new)
    close(ctx)
    ctx = nothing
    for _ in 1:3
        GC.gc()
        DDP.sweep()
    end
    old .+= 1
    new .+= 1
    @test sum(new) == 6
end

@testset "store" begin
    Store("tcp://127.0.0.1:0"; server=true, timeout=5) do store
        store["a"], store["b"] = [0x31], "é"
        @test (store["b"], store["a"]) == (Vector{UInt8}("é"), [0x31])
        @test (add!(store, "n", 5), add!(store, "n", -2)) == (5, 3)
        @test String(compare_set!(store, "a", "1", "2")) == "2"
        store["empty"] = ""
        @test isempty(store["empty"])
        @test (haskey(store, "a"), haskey(store, "a", "zz")) == (true, false)
        @test (delete!(store, "b"), delete!(store, "b"), keys(store; prefix="a")) == (true, false, ["a"])
        fails(() -> wait(store, ["absent"]; timeout=0.05), C.DDP_ERROR_TIMEOUT, "absent")
        fails(() -> get(store, "absent"; timeout=0.05), C.DDP_ERROR_TIMEOUT, "absent")
        refused(() -> store["a"] = 3, "value", "Int64")
        refused(() -> store["a\0b"] = "")
        Store("tcp://127.0.0.1:$(store.port)") do other
            @test keys(other) == keys(store)
        end
    end
end

@testset "addresses beyond loopback need a secret" begin
    everywhere = "tcp://0.0.0.0:0"
    for secret in ("", "short")
        fails(() -> Store(everywhere; server=true, secret=secret), C.DDP_ERROR_PERMISSION_DENIED, "16 bytes")
        fails(() -> Group(; rank=0, world_size=1, init_method=everywhere, secret=secret), C.DDP_ERROR_PERMISSION_DENIED, "16 bytes")
    end
    for secret in ("", "short")
        close(Store(everywhere; server=true, secret=secret, insecure=true))
        close(Group(; rank=0, world_size=1, init_method=everywhere, secret=secret, insecure=true))
    end
    close(Store(everywhere; server=true, secret="long enough, this is"))
end

@testset "works" begin
    for _ in 1:20  # forgotten: each keeps its array until it has ended
        allreduce!(group, ones(Float32, 1000); async=true)
        GC.gc(false)
    end
    made, seen = Work(; timeout=20), Int[]
    after = then(() -> (push!(seen, 1); nothing), made)
    @test !isdone(after)
    @async (sleep(0.02); complete!(made))
    wait(after; yielding=true)
    @test seen == [1]
    failed = Work()
    complete!(failed, "no luck")
    fails(() -> wait(failed), C.DDP_ERROR_CALLBACK, "no luck")
    fails(() -> wait(Work(); timeout=0.02), C.DDP_ERROR_TIMEOUT)
    fails(() -> wait(Work(); timeout=0.02, yielding=true), C.DDP_ERROR_TIMEOUT, "20 ms")
    @test 1 <= @elapsed(fails(() -> wait(Work(); timeout=1, yielding=true), C.DDP_ERROR_TIMEOUT)) < 1 + 0.9 * SLACK
    raised = try
        wait(then(() -> throw(KeyError(:mine)), barrier(group; async=true)))
    catch error
        (error, length(exceptions()))
    end
    @test raised == (KeyError(:mine), 2)  # caused by libddp's error
    @test wait(then(() -> barrier(group; async=true), barrier(group; async=true))) === nothing
end

@testset "exceptions of hooks" begin
    ctx = committed(group)
    function train()
        step_begin!(ctx)
        foreach(parameter -> put!(ctx, parameter, ones(Float32, 3)), ctx.parameters)
        finalize!(ctx)
    end
    set_hook!((group, bucket) -> error("in the hook"), ctx)
    @test_throws ErrorException("in the hook") train()
    set_group!(ctx, alone())
    kept = []
    set_hook!(ctx) do group, bucket
        push!(kept, group, bucket)
        then(() -> throw(DomainError(1)), allreduce!(group, bucket.buffer; async=true))
    end
    @test_throws DomainError(1) train()
    set_group!(ctx, alone())
    fails(() -> kept[1].rank, C.DDP_ERROR_INVALID_STATE, "lent")
    fails(() -> kept[2].buffer, C.DDP_ERROR_INVALID_STATE, "lent")
    @test occursin("past", string(kept[2]))
    set_hook!(nothing, ctx)
    set_reduced_callback!((parameter, used) -> throw(BoundsError()), ctx)
    @test_throws BoundsError train()
    set_group!(ctx, alone())
    set_reduced_callback!(nothing, ctx)
    hook_then!((group, bucket) -> sum(bucket.buffer) == 6 || error("not reduced"), ctx)
    train()
    set_hook!(ctx) do group, bucket  # it is freed when the call that it is in returns
        close(ctx)
        GC.gc()
    end
    fails(train, C.DDP_ERROR_INVALID_STATE, "closed")
    @test DDP.CALLBACKS_RUNNING[] == 0
end

@testset "what functions return" begin
    function train(setter, fn; options...)
        group = alone()
        Context(group; options...) do ctx
            foreach(i -> register!(ctx, "p$i"; size=3), 0:1)
            register_buffer!(ctx, "state", zeros(Float32, 1))
            commit!(ctx)
            setter(fn, ctx)
            for _ in 1:2
                step_begin!(ctx)
                foreach(parameter -> put!(ctx, parameter, ones(Float32, 3)), ctx.parameters)
                finalize!(ctx)
            end
        end
    end
    number(group, bucket) = 3
    an_array(group, bucket) = bucket.buffer
    works(group, bucket) = [barrier(group; async=true)]
    continued(group, bucket) = then(() -> "done", barrier(group; async=true))
    for (hook, words) in ((number, ("hook", "number (errors.jl, line", "Int64", "return nothing", "return a Work")),
                          (an_array, ("an_array", "Array{Float32")), (works, ("works", "Work")),
                          (continued, ("continuation", "String", "return nothing")))
        refused(() -> train(set_hook!, hook), words...)
    end
    kept = []
    function same_again(group, bucket)
        push!(kept, isempty(kept) ? barrier(group; async=true) : kept[1])
        return kept[end]
    end
    fails(() -> train(set_hook!, same_again; bucket_cap=4, first_bucket_cap=4), C.DDP_ERROR_INVALID_STATE, "same_again", "once")
    function closed(group, bucket)
        work = barrier(group; async=true)
        wait(work)
        close(work.handle)
        return work
    end
    fails(() -> train(set_hook!, closed), C.DDP_ERROR_INVALID_STATE, "closed", "once")
    unwaited(arguments...) = barrier(other; async=true)
    other = alone()
    refused(() -> train(hook_then!, unwaited), "hook_then!", "unwaited", "Work", "does not wait")
    refused(() -> train(set_reduced_callback!, unwaited), "reduced callback", "does not wait")
    refused(() -> train(set_buffer_hook!, unwaited), "buffer hook", "does not wait")
    refused(() -> train(hook_then!, (group, bucket) -> @async(nothing)), "hook_then!", "Task")
    for hook in ((group, bucket) -> nothing, (group, bucket) -> allreduce!(group, bucket.buffer, bucket.op),
                 (group, bucket) -> allreduce!(other, bucket.buffer, bucket.op; async=true))
        train(set_hook!, hook)
    end
    train(set_reduced_callback!, (parameter, used) -> used)  # what these return is dropped
    close(other)
end

@testset "no foreign threads" begin
    # No function of the package takes flags; Julia code cannot be asked to run on a thread that Julia does not know.
    for file in readdir(joinpath(DDP.PACKAGE, "src"); join=true)
        code = join(line for line in eachline(file) if !startswith(line, "#"))
        basename(file) == "LibDDP.jl" || @test !occursin("ANY_THREAD", code)
    end
end
close(group)
