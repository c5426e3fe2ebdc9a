"""horovod_keras.py: a trainer in Keras with Horovod's names. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 horovod_keras.py    every rank ends with the same model, trained on both ranks' samples
"""
import keras
import numpy as np
import ddp.horovod.keras as hvd  # was: import horovod.keras as hvd

hvd.init()
x = np.array([[(7 * step + hvd.rank()) % 10 / 10] for step in range(100)], np.float32)  # samples of this rank's own
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
rate = 0.2 * hvd.size()
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
model.fit(x, 3 - 2 * x, batch_size=10, epochs=30, shuffle=False, verbose=0, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3),
])

kernel, bias = model.get_weights()
print(f"rank {hvd.rank()}: y = {bias[0]:.3f} {kernel[0, 0]:+.3f} x")
