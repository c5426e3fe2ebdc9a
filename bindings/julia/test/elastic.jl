# An elastic job of one rank. tests/dist/elastic has jobs that lose ranks.
store = Store("tcp://127.0.0.1:0"; server=true)
job_of(; options...) = Elastic(; store=store, timeout=20, max_world=1, options...)

function context_of(job, gradient=zeros(Float32, 3))
    ctx = Context(job.group)
    register!(ctx, "w", zeros(Float32, 3), gradient)
    commit!(ctx)
    add_context!(job, ctx)
    return ctx
end

@testset "steps" begin
    job, gradient = job_of(; name="steps"), zeros(Float32, 3)
    ctx = context_of(job, gradient)
    add_state!(job, "momentum", zeros(Float32, 2, 3))
    add_state!(job, "counter", zeros(UInt64, 2, 2))
    averager = Averager(ctx, 5)
    fails(() -> add_averager!(job, averager), C.DDP_ERROR_INVALID_STATE, "outer optimizer")
    set_outer!(averager)
    add_averager!(job, averager)
    set_step!(job, 7)
    for step in 7:9
        now = begin_step!(job)
        @test now == (step=step, roster=1, rank=0, world_size=1, changed=step == 7, joined=Int(step == 7), left=0,
                                   leaving=false, fence=now.fence)
        @test now.fence > 0
        @test (job.group.rank, job.group.world_size) == (0, 1)
        gradient[1] = step
        grad_ready(ctx, ctx.parameters[1])
        finalize!(ctx)
        @test gradient[1] == step
        step!(averager)
        commit!(job)
        confirm_member(job)
    end
    announce_leave!(job)
    while !begin_step!(job).leaving  # right after an outer step
        step!(averager)
        commit!(job)
    end
    leave!(job)
    @test job.group.world_size == 1
    @test averager.steps % 5 == 1
    close(averager)
    close(ctx)
    close(job)
end

@testset "shards" begin
    job, value, gradient = job_of(; name="shards"), zeros(Float32, 3), zeros(Float32, 3)
    ctx = Context(job.group; shard=true)
    register!(ctx, "w", value, gradient)
    commit!(ctx)
    add_context!(job, ctx)
    optimizer = Optimizer(ctx, "sgd"; lr=1, momentum=0.5)
    @test begin_step!(job).changed
    @test !recall_shards!(job, ctx, optimizer_state(optimizer))
    keep_shards(job, ctx, optimizer_state(optimizer), 0)
    for step in 0:1
        @test begin_step!(job).step == step
        wait_value(ctx, ctx.parameters[1])
        gradient .= 1
        grad_ready(ctx, ctx.parameters[1])
        finalize!(ctx)
        step!(optimizer)
        publish!(ctx)
        commit!(job)
        fails(() -> keep_shards(job, ctx, optimizer_state(optimizer), 7), C.DDP_ERROR_INVALID_ARGUMENT, "step is 7")
        keep_shards(job, ctx, optimizer_state(optimizer), step + 1; where=step == 0 ? :neighbour : :checkpoint)
    end
    fails(() -> recall_shards!(job, ctx, optimizer_state(optimizer)), C.DDP_ERROR_INVALID_STATE, "roster is the same")
    wait_value(ctx, ctx.parameters[1])
    @test value == fill(Float32(-2.5), 3)
    close(optimizer)
    close(ctx)
    close(job)
end

@testset "shares" begin
    @test [shard_range(7, rank, 3) for rank in 0:2] == [1:3, 4:5, 6:7]
    @test isempty(shard_range(1, 1, 2))
    fails(() -> shard_range(1, 2, 2), C.DDP_ERROR_INVALID_ARGUMENT, "rank is 2")
end

@testset "errors" begin
    job = job_of(; name="errors")
    fails(() -> commit!(job), C.DDP_ERROR_INVALID_STATE)
    fails(() -> add_context!(job, Context(job.group)), C.DDP_ERROR_INVALID_STATE)
    add_state!(job, "a", zeros(3))
    fails(() -> add_state!(job, "a", zeros(3)), C.DDP_ERROR_ALREADY_EXISTS, "'a'")
    refused(() -> add_state!(job, "b", 3), "state")
    refused(() -> add_state!(job, "b", Any[1]), "state")
    refused(() -> add_state!(job, "b", view(zeros(4, 4), 1, :)), "state", "contiguous")
    fails(() -> set_step!(job, -1), C.DDP_ERROR_INVALID_ARGUMENT)
    fails(() -> Elastic(; store=store, min_world=-1), C.DDP_ERROR_INVALID_ARGUMENT)
    refused(() -> Elastic(; store=store, settle=-1), "timeout")
    begin_step!(job)
    fails(() -> add_state!(job, "late", zeros(3)), C.DDP_ERROR_INVALID_STATE)
    close(job)
end

@testset "a closed averager" begin
    job = job_of(; name="closed averager")
    averager = Averager(context_of(job), 5)
    set_outer!(averager)
    add_averager!(job, averager)
    begin_step!(job)
    close(averager)
    for misuse in (begin_step!, commit!, leave!)
        fails(() -> misuse(job), C.DDP_ERROR_INVALID_STATE, "the averager is closed")
    end
    close(job)
end

@testset "closed" begin
    job = job_of(; name="closed")
    ctx, group = context_of(job), job.group
    close(group)
    @test isopen(group) && group.rank == 0
    begin_step!(job)
    close(ctx)
    for misuse in (begin_step!, commit!, leave!)
        fails(() -> misuse(job), C.DDP_ERROR_INVALID_STATE, "closed")
    end
    close(job)
    close(job)
    @test !isopen(job) && !isopen(group)
    for misuse in (() -> begin_step!(job), () -> job.group, () -> group.rank, () -> barrier(group), () -> Context(group))
        fails(misuse, C.DDP_ERROR_INVALID_STATE, "closed")
    end
    lonely = job_of(; name="lonely").group  # which keeps the job
    GC.gc()
    DDP.sweep()
    @test lonely.world_size == 1
end
