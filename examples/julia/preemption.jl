# preemption.jl: a trainer that a cluster may take off its machines. A signal to ddprun makes all ranks write a checkpoint, or end,
# after the same step. The next start goes on from there, with the numbers of a training that nobody has interrupted.
#
#     ddprun -n 2 --checkpoint-on SIGUSR1 --stop-on SIGTERM julia preemption.jl FILE [STEPS]
#
# The model is that of minimal.jl.
using DDP, Printf, Serialization

function train(path, steps)
    group = Group()
    w, grad, first = zeros(Float32, 2), zeros(Float32, 2), zeros(Int64, 1)
    if group.rank == 0 && isfile(path)
        first[1], w[:] = deserialize(path)
    end
    bcast!(group, first)
    step, stopped = first[1], false
    Context(group; votes=true) do ctx
        param = register!(ctx, "w", w, grad)
        commit!(ctx)  # every rank goes on with rank 0's w
        println("rank $(group.rank): from step $step")
        while step < steps && !stopped
            x = Float32((7 * step + group.rank) % 10) / 10
            wrong = w[1] + w[2] * x - (3 - 2 * x)
            sleep(0.002)  # a model that takes longer
            grad .= (wrong, wrong * x)
            grad_ready(ctx, param)
            finalize!(ctx)
            w .-= 0.02f0 .* grad
            step += 1
            cast = votes(ctx)  # the same on every rank
            stopped = :stop in cast
            if stopped || :checkpoint in cast
                if group.rank == 0
                    serialize(path * ".new", (step, w))
                    mv(path * ".new", path; force=true)  # a process that is killed meanwhile leaves the checkpoint before
                end
                println("rank $(group.rank): checkpoint after step $step")
            end
        end
    end
    @printf("rank %d: %s after step %d, y = %.8g %+.8g x\n", group.rank, step < steps ? "stopped" : "done", step, w[1], w[2])
end

train(ARGS[1], length(ARGS) > 1 ? parse(Int, ARGS[2]) : 500)
