"""Real models in PyTorch, with random weights: residual networks and a transformer encoder."""
import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up by 4, and a way around (He et al. 2015)."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.short = nn.Identity() if inputs == outputs and stride == 1 else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def resnet(blocks, width=64, colours=3, classes=1000, small=False):
    """blocks: of each stage. small: for pictures of a few pixels, which are made smaller once at first, not twice."""
    first = nn.Conv2d(colours, width, 3, 2, 1, bias=False) if small else nn.Conv2d(colours, width, 7, 2, 3, bias=False)
    layers = [first, nn.BatchNorm2d(width), nn.ReLU(), *([] if small else [nn.MaxPool2d(3, 2, 1)])]
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Transformer(nn.Module):
    """An encoder like BERT, with a class for the first token."""

    def __init__(self, tokens=8192, width=512, layers=6, length=128, classes=1000):
        super().__init__()
        self.embedding, self.position = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, layers), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x) + self.position)[:, 0])


def pictures(side):
    return lambda: (torch.randn(1, 3, side, side), torch.randint(1000, (1,)))


# Name on the command line: name on the page, the model, and a batch of one.
MODELS = {
    "resnet50": ("ResNet-50", lambda: resnet((3, 4, 6, 3)), pictures(224)),
    "resnet152": ("ResNet-152", lambda: resnet((3, 8, 36, 3)), pictures(224)),
    "transformer": ("transformer", Transformer, lambda: (torch.randint(8192, (1, 128)), torch.randint(1000, (1,)))),
    "small": ("small ResNet", lambda: resnet((1, 1), 8), pictures(32)),
}


def for_digits():
    """A small ResNet for pictures of 28 x 28 grey pixels."""
    return resnet((1, 1, 1), 8, 1, 10, small=True)
