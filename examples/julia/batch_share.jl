# batch_share.jl: ranks of different speed train on one global batch. The last rank takes three times as long for a sample, and soon gets
# a third of the samples of another one.
#
#     ddprun -n 3 julia batch_share.jl [STEPS]
#
# The model is that of minimal.jl. Any number of ranks, with any shares, trains the same w.
using DDP, Printf

const SAMPLES = 84

function train(steps)
    group = Group()
    rank, world = group.rank, group.world_size
    seconds = rank == world - 1 > 0 ? 3e-3 : 1e-3  # that a sample takes
    w, grad = zeros(Float32, 2), zeros(Float32, 2)
    Context(group; reduction=:weighted_mean) do ctx
        param = register!(ctx, "w", w, grad)
        share_batch!(ctx, SAMPLES)
        commit!(ctx)
        before, since, since_step = 0, 0.0, 0
        for step in 0:steps-1
            mine = batch_share(ctx)
            if length(mine) != before || step == steps - 1
                now = time()
                step > 0 && @printf("rank %d: %d of %d samples, %.1f ms a step\n", rank, before, SAMPLES, 1e3 * (now - since) / (step - since_step))
                before, since, since_step = length(mine), now, step
            end
            set_weight!(ctx, length(mine))  # before each step
            step_begin!(ctx)
            sleep(seconds * length(mine))
            x = Float32.((7 * step .+ mine .- 1) .% 10) ./ 10
            wrong = w[1] .+ w[2] .* x .- (3 .- 2 .* x)
            grad .= (sum(wrong), sum(wrong .* x)) ./ length(mine)
            grad_ready(ctx, param)
            finalize!(ctx)  # grad is now the mean of the global batch
            w .-= 0.5f0 .* grad
        end
    end
    @printf("rank %d: y = %.4f %+.4f x\n", rank, w[1], w[2])
end

train(length(ARGS) > 0 ? parse(Int, ARGS[1]) : 60)
