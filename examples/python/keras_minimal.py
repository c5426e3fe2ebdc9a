"""keras_minimal.py: a whole distributed trainer in Keras. It fits y = w0 + w1 x to samples; each rank has its own.

    KERAS_BACKEND=jax ddprun -n 2 python3 keras_minimal.py      every rank ends with the same model, trained on both ranks' samples
"""
import ddp
import ddp.keras
import keras
import numpy as np

group = ddp.Group()
keras.utils.set_random_seed(group.rank)  # ranks draw different noise, and all start from rank 0's weights
x = np.array([[(7 * step + group.rank) % 10 / 10] for step in range(100)], np.float32)  # samples of this rank's own
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.3), "mse")
ddp.keras.distribute(model, group)  # from now on fit trains on all ranks
model.fit(x, 3 - 2 * x, batch_size=5, epochs=30, verbose=0)  # 5 samples of each rank: a global batch of 10

kernel, bias = model.get_weights()
print(f"rank {group.rank}: y = {bias[0]:.3f} {kernel[0, 0]:+.3f} x")
