# minimal.jl: a whole distributed trainer. It fits y = w1 + w2 x to samples; each rank has its own.
#
#     ddprun -n 2 julia minimal.jl          every rank ends with the same w, trained on both ranks' samples
using DDP, Printf

group = Group()  # rank and world size from the launcher; alone without one
w, grad = zeros(Float32, 2), zeros(Float32, 2)

Context(group) do ctx
    param = register!(ctx, "w", w, grad)
    commit!(ctx)  # every rank starts from rank 0's w
    for step in 0:499
        x = (7 * step + group.rank) % 10 / 10  # a sample of this rank's own
        wrong = w[1] + w[2] * x - (3 - 2 * x)  # prediction minus truth
        grad .= (wrong, wrong * x)
        grad_ready(ctx, param)  # starts the averaging over ranks
        finalize!(ctx)  # grad is now the mean
        w .-= 0.5f0 .* grad
    end
end

@printf("rank %d: y = %.3f %+.3f x\n", group.rank, w[1], w[2])
