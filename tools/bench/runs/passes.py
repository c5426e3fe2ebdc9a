"""How long real models compute on real GPUs, from published throughputs: for predictions.

TensorFlow's benchmarks of 2017 (K80 and P100), and NVIDIA's DeepLearningExamples (V100)."""

# Images or sequences a second of one GPU, the batch, and milliseconds of the optimizer: the bytes that it moves, at 80 % of the memory's rate.
SETTINGS = [
    ("resnet50", "K80, FP32", 51.9, 64, 2.7),
    ("resnet50", "V100, FP32", 367, 64, 0.7),
    ("resnet50", "V100, mixed", 1200, 64, 0.7),
    ("vgg16", "P100, FP32", 154, 64, 4.7),
    ("bert-large", "V100, FP32", 7.56, 7, 13),
    ("bert-large", "V100, mixed", 26.04, 14, 13),
]


def passes_ms(setting):
    """The forward and the backward pass of a setting. A third is the forward pass."""
    _, _, rate, batch, _ = setting
    return 1e3 * batch / rate / 3, 1e3 * batch / rate * 2 / 3
