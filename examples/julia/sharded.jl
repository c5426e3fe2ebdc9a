# ../c/sharded.c in Julia. The work and the state of AdamW are divided by the number of ranks, and any number of ranks goes on where others
# have stopped.
#
#     ddprun -n 4 julia sharded.jl FOLDER 1        one epoch, which is saved in FOLDER
#     ddprun -n 3 julia sharded.jl FOLDER 2        and the second one
using DDP, Printf

include("idx.jl")
include("mlp.jl")
BLAS.set_num_threads(1)  # ranks share the cores already

const BATCH, SEED = 48, 1

"Gradients live in the buckets. Biases do not decay. Returns the context, the optimizer and the number of the norm."
function share!(net, group)
    ctx = Context(group; shard=true)
    foreach((name, value) -> register!(ctx, name, value), net.names, net.values)
    norm = track_grad_norm!(ctx)
    commit!(ctx)
    net.gradients = [grad_view(ctx, parameter) for parameter in ctx.parameters]
    optimizer = Optimizer(ctx, "adamw"; weight_decay=0.1)
    for (parameter, value) in zip(ctx.parameters, net.values)
        ndims(value) == 1 && set_option!(optimizer, parameter, :weight_decay, 0)
    end
    return ctx, optimizer, norm
end

"One pass over the digits. Returns this rank's part of the loss."
function epoch!(net, group, ctx, optimizer, norm, images, labels, number)
    order, part, loss = shuffled(length(labels), SEED, number), BATCH ÷ group.world_size, 0.0
    set_option!(optimizer, :lr, 1e-3 / (number + 1))
    for first in 0:BATCH:(length(labels) - BATCH)
        mine = order[(first + group.rank * part + 1):(first + (group.rank + 1) * part)]
        foreach(parameter -> wait_value(ctx, parameter), ctx.parameters)
        loss += forward!(net, images[:, mine], labels[mine])[1]
        backward!(net, labels[mine], tensor -> grad_ready(ctx, ctx.parameters[tensor]))
        finalize!(ctx)
        clip_grad_norm!(ctx, norm, 1)
        step!(optimizer)
        publish!(ctx)  # the new values travel
    end
    foreach(parameter -> wait_value(ctx, parameter), ctx.parameters)
    return loss
end

"The values and the state that this rank owns."
arrays(ctx, optimizer) =
    [[ShardArray("value", piece, piece.value) for piece in DDP.pieces(ctx)]; optimizer_state(optimizer)]

"How many epochs others have trained."
function go_on!(ctx, optimizer, folder)
    try
        return parse(Int, load_shards!(ctx, folder, arrays(ctx, optimizer)))
    catch error
        error isa DDPError && error.status == DDP.LibDDP.DDP_ERROR_NOT_FOUND || rethrow()
        return 0  # the first ones
    end
end

function main(folder, epochs)
    digits = normpath(@__DIR__, "..", "data", "mnist")
    images, labels = load_digits(digits, "train")
    group, net = Group(), MLP(SEED)
    ctx, optimizer, norm = share!(net, group)
    for number in go_on!(ctx, optimizer, folder):(epochs - 1)
        loss = [epoch!(net, group, ctx, optimizer, norm, images, labels, number) / (length(labels) ÷ BATCH * BATCH)]
        allreduce!(group, loss)
        group.rank == 0 && @printf("epoch %d  loss %.6f\n", number + 1, loss[1])
        save_shards(ctx, folder, arrays(ctx, optimizer); note=string(number + 1))
    end
    if group.rank == 0
        tests, digit = load_digits(digits, "t10k")
        @printf("test accuracy %.2f %%\n", 100 * forward!(net, tests, digit)[2] / length(digit))
    end
end

length(ARGS) == 2 || (println(stderr, "usage: sharded.jl FOLDER EPOCHS"); exit(2))
main(ARGS[1], parse(Int, ARGS[2]))
