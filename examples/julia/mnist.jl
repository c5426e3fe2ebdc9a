# Trains a multi-layer perceptron (mlp.jl) on handwritten digits with as many processes as a launcher starts.
#
#     julia mnist.jl                           one process
#     ddprun -n 4 julia mnist.jl               four processes, the same training in a fraction of the time
#
# libddp's part: share! registers the parameters, grad_ready says that a gradient is complete, and epoch! calls
# step_begin! before the forward and finalize! after the backward pass. All else is the same as without it.
#
# It is the trainer of ../c/mnist.c: the same model, batches and options. The trainers of all languages may be
# ranks of one job.
using DDP, Printf

include("idx.jl")
include("mlp.jl")
BLAS.set_num_threads(1)  # ranks share the cores already

"The command line: every option with its default, and what it is."
const OPTIONS = (("data", normpath(@__DIR__, "..", "data", "mnist"), "folder with the four IDX files of MNIST, plain or .gz"),
                 ("epochs", 10, "passes over the training digits"),
                 ("batch", 64, "digits in a global batch, divided among the ranks"), ("lr", 0.05f0, "learning rate"),
                 ("momentum", 0.9f0, "of the updates"),
                 ("seed", 1, "of the first weights and of the order of the digits"),
                 ("copy", false, "gradients in the model's own memory, not in libddp's buckets"),
                 ("compare-local", false, "train without libddp afterwards, and compare"),
                 ("hook", "allreduce", "communication hook"), ("hook-options", "", "of it: K=V,..."),
                 ("average-every", 0, "average the models every N steps, for --hook post_local_sgd"),
                 ("save", "", "file for rank 0's final weights, raw Float32 one tensor after another"))

function usage(problem="")
    isempty(problem) || println(stderr, "mnist: ", problem)
    foreach(((name, default, what),) -> println(stderr, rpad("  --$name", 18), what, " ($default)"), OPTIONS)
    exit(isempty(problem) ? 0 : 2)
end

function parse_options(arguments)
    chosen, rest = Dict{String,Any}(name => default for (name, default, _) in OPTIONS), copy(arguments)
    while !isempty(rest)
        name = replace(popfirst!(rest), r"^--" => "")
        name == "help" && usage()
        name == "view" && continue  # the default
        haskey(chosen, name) || usage("unknown option --$name")
        default = chosen[name]
        default isa Bool && (chosen[name] = true; continue)
        isempty(rest) && usage("something must follow --$name")
        text = popfirst!(rest)
        chosen[name] = default isa String ? text : tryparse(typeof(default), text)
        chosen[name] === nothing && usage("a number must follow --$name, not $text")
    end
    return (; (Symbol(replace(name, "-" => "_")) => chosen[name] for (name, _, _) in OPTIONS)...)
end

"A model and its share of the work. group nothing: trains alone, without libddp."
mutable struct Trainer
    opt::NamedTuple
    group::Union{Group,Nothing}
    rank::Int
    world::Int
    net::MLP
    ctx::Union{Context,Nothing}
    averager::Union{Averager,Nothing}
    generation::Int
end

function Trainer(opt, group=nothing)
    rank, world = group === nothing ? (0, 1) : (group.rank, group.world_size)
    # Every rank draws other weights, on purpose: commit! replaces them with those of rank 0.
    trainer = Trainer(opt, group, rank, world, MLP(opt.seed + rank), nothing, nothing, -1)
    group === nothing || share!(trainer)
    return trainer
end

"Hands the model to libddp, which makes every rank's weights those of rank 0."
function share!(trainer)
    net, opt = trainer.net, trainer.opt
    ctx = trainer.ctx = Context(trainer.group)
    for (name, value, gradient) in zip(net.names, net.values, net.gradients)
        register!(ctx, name, value, opt.copy ? gradient : nothing)
    end
    pairs = [Symbol(first(pair)) => last(pair) for pair in split.(split(opt.hook_options, ","; keepempty=false), "=")]
    use_hook!(ctx, opt.hook; pairs...)
    commit!(ctx)
    opt.average_every > 0 && (trainer.averager = Averager(ctx, opt.average_every))
end

"Starts a step, and points the model's gradients at their places in the buckets when those have moved."
function begin_step!(trainer)
    ctx = trainer.ctx
    step_begin!(ctx)
    if !trainer.opt.copy && trainer.generation != layout_generation(ctx)
        trainer.net.gradients = [grad_view(ctx, parameter) for parameter in ctx.parameters]
        trainer.generation = layout_generation(ctx)
    end
end

"One pass over the digits. Returns this rank's part of the score."
function epoch!(trainer, images, labels, number)
    opt, net, ctx = trainer.opt, trainer.net, trainer.ctx
    order, part, total = shuffled(length(labels), opt.seed, number), opt.batch ÷ trainer.world, zeros(2)
    for first in 0:opt.batch:(length(labels) - opt.batch)
        mine = order[(first + trainer.rank * part + 1):(first + (trainer.rank + 1) * part)]
        ctx === nothing || begin_step!(trainer)
        total .+= forward!(net, images[:, mine], labels[mine])
        if ctx === nothing
            backward!(net, labels[mine])
        else
            backward!(net, labels[mine], tensor -> grad_ready(ctx, ctx.parameters[tensor]))
            finalize!(ctx)
        end
        update!(net, opt.lr, opt.momentum)
        trainer.averager === nothing || step!(trainer.averager)
    end
    return total
end

"Every rank trains the global batches alone and compares. Whether no rank saw more than the bound of ../c/compare.c."
function compare_with_local(shared, images, labels)
    opt, local_one = shared.opt, Trainer(shared.opt)
    DDP.mark("train alone") do  # in a timeline: ddprun --trace
        foreach(number -> epoch!(local_one, images, labels, number), 0:(opt.epochs - 1))
    end
    worst = zeros(2)
    for (mine, other) in zip(shared.net.values, local_one.net.values)
        apart = abs.(Float64.(mine) .- other)
        size = max.(sqrt(sum(abs2, Float64.(other)) / length(other)), abs.(other))
        worst .= any(isnan, apart) ? Inf : max.(worst, (maximum(apart), maximum(apart ./ size)))
    end
    allreduce!(shared.group, worst, max)
    steps = opt.epochs * (length(labels) ÷ opt.batch)
    bound = steps * opt.lr / (1 - opt.momentum) * opt.batch * eps(Float32) * 0.1
    if shared.rank == 0
        @printf("against one process, any weight on any rank after %d steps: difference %.3g, relative %.3g\n", steps, worst...)
        @printf("bound %.3g (rounding of steps * lr / (1 - momentum) * batch * 0.1, see compare.c): %s\n", bound,
                worst[1] <= bound ? "met" : "EXCEEDED")
    end
    return worst[1] <= bound
end

function main(opt)
    images, labels = load_digits(opt.data, "train")
    group = Group()
    if opt.batch % group.world_size != 0 || opt.batch > length(labels)
        usage("--batch $(opt.batch) must be a multiple of the $(group.world_size) ranks, and at most the $(length(labels)) digits")
    end
    trainer = Trainer(opt, group)
    seen = length(labels) ÷ opt.batch * opt.batch
    for number in 0:(opt.epochs - 1)
        start = time()
        total = epoch!(trainer, images, labels, number)
        allreduce!(group, total)
        group.rank == 0 && @printf("epoch %2d  loss %.4f  train accuracy %5.2f %%  %8.0f images/s\n", number + 1, total[1] / seen,
                                   100 * total[2] / seen, seen / (time() - start))
    end
    if group.rank == 0
        tests, digits = load_digits(opt.data, "t10k")
        @printf("test accuracy %.2f %%\n", 100 * forward!(trainer.net, tests, digits)[2] / length(digits))
        isempty(opt.save) || open(file -> foreach(value -> write(file, value), trainer.net.values), opt.save, "w")
    end
    return !opt.compare_local || compare_with_local(trainer, images, labels)
end

exit(main(parse_options(ARGS)) ? 0 : 1)
