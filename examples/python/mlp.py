"""A multi-layer perceptron 784-256-128-10 in NumPy, with its gradients written by hand; the same as ../c/mlp.c, and from the
same seed the same weights. It knows nothing of libddp."""
import numpy as np

WIDTHS = (784, 256, 128, 10)
KNEE = np.float32(0.5)  # where ReLU's kink is rounded off; ../c/mlp.c says why


def splitmix64(seed, count):
    """The first `count` numbers of the generator in ../c/random.h, and its state after them."""
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    with np.errstate(over="ignore"):
        z = np.uint64(seed & mask) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(gamma)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31)), (seed + count * gamma) & mask


def rectify(x):
    bent = np.minimum(x, KNEE)
    return np.where(x > 0, bent * bent / (2 * KNEE) + (x - bent), np.float32(0))


def rectify_slope(y):
    """The derivative of rectify, from its result."""
    return np.where(y < KNEE / 2, np.sqrt(y * (2 / KNEE)), np.float32(1))


class MLP:
    """values, gradients and velocities: weight (inputs x outputs) and bias of each layer in forward order."""

    def __init__(self, seed):
        self.names = [f"layer{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
        self.values = []
        for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
            bits, seed = splitmix64(seed, inputs * outputs)
            uniform = (bits >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
            limit = np.sqrt(np.float32(6) / np.float32(inputs))  # He et al. 2015
            self.values += [(limit * (2 * uniform - 1)).reshape(inputs, outputs), np.zeros(outputs, np.float32)]
        self.gradients = [np.zeros_like(value) for value in self.values]
        self.velocities = [np.zeros_like(value) for value in self.values]

    def forward(self, images, labels):
        """Returns the sum of the cross entropy, and how many digits were recognised."""
        self.outputs = [images]
        for weight, bias in zip(self.values[0:4:2], self.values[1:4:2]):
            self.outputs.append(rectify(self.outputs[-1] @ weight + bias))
        logits = self.outputs[-1] @ self.values[4] + self.values[5]
        logits -= logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        sums = exponentials.sum(axis=1, keepdims=True)
        self.probabilities = exponentials / sums
        rows = np.arange(len(labels))
        loss = float((np.log(sums[:, 0]) - logits[rows, labels]).sum(dtype=np.float64))
        return loss, int((logits.argmax(axis=1) == labels).sum())

    def backward(self, labels, ready=lambda tensor: None):
        """Gradients of the mean loss, the last layer's first. ready(tensor) is called as soon as one is complete."""
        delta = self.probabilities
        delta[np.arange(len(labels)), labels] -= 1
        delta *= np.float32(1) / np.float32(len(labels))
        for layer in (2, 1, 0):
            delta.sum(axis=0, out=self.gradients[2 * layer + 1])
            ready(2 * layer + 1)
            np.matmul(self.outputs[layer].T, delta, out=self.gradients[2 * layer])
            ready(2 * layer)
            if layer > 0:
                delta = rectify_slope(self.outputs[layer]) * (delta @ self.values[2 * layer].T)

    def update(self, rate, momentum):
        """SGD: velocity = momentum * velocity + gradient; value -= rate * velocity."""
        for value, velocity, gradient in zip(self.values, self.velocities, self.gradients):
            velocity *= momentum
            velocity += gradient
            value -= rate * velocity
