"""jax_minimal.py: a whole distributed trainer in JAX and optax. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 jax_minimal.py      every rank ends with the same w, trained on both ranks' samples
"""
import jax
import optax
from ddp.jax import DataParallel

parallel = DataParallel({"w0": 0.0, "w1": 0.0})  # any pytree
rank, params = parallel.group.rank, parallel.params  # every rank starts from rank 0's
optimizer = optax.sgd(0.5)
state = optimizer.init(params)
gradients = jax.jit(jax.grad(lambda w, x: (w["w0"] + w["w1"] * x - (3 - 2 * x)) ** 2))
for step in range(500):
    x = (7 * step + rank) % 10 / 10  # a sample of this rank's own
    grads = parallel.mean(gradients(params, x))  # the mean over ranks
    updates, state = optimizer.update(grads, state)
    params = optax.apply_updates(params, updates)

print(f"rank {rank}: y = {params['w0']:.3f} {params['w1']:+.3f} x")
