# The cost of ddp_grad_ready from Julia: nanoseconds a call, the loop included, as one line of JSON. The gradients are
# views of one element in one bucket, so that nothing is copied and nothing is sent meanwhile.
#
#     julia grad_ready.jl [--limit-ns N]      ends with status 1 if the median round took longer
using DDP

const PARAMS, ROUNDS = 2000, 51

function announce(ctx, parameters)
    start = time_ns()
    for parameter in parameters
        grad_ready(ctx, parameter)
    end
    return (time_ns() - start) / length(parameters)
end

function measure()
    Group(; rank=0, world_size=1) do group
        Context(group) do ctx
            parameters = [register!(ctx, "p$i"; size=1) for i in 1:PARAMS]
            commit!(ctx)
            return map(1:ROUNDS) do _
                step_begin!(ctx)
                took = announce(ctx, parameters)
                finalize!(ctx)
                took
            end
        end
    end
end

function main()
    limit = length(ARGS) == 2 && ARGS[1] == "--limit-ns" ? parse(Float64, ARGS[2]) : Inf
    sorted = sort(measure())
    median, best = sorted[end ÷ 2 + 1], sorted[1]
    println("{\"function\": \"ddp_grad_ready\", \"from\": \"Julia $VERSION\", \"median_ns\": $(round(median; digits=1)), ",
            "\"best_ns\": $(round(best; digits=1))}")
    exit(median <= limit ? 0 : 1)
end

main()
