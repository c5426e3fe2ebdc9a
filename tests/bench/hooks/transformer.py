"""A transformer on the characters of docs/*.md, in PyTorch: the model of streaming.py and accuracy.py."""
import pathlib

import torch

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
LENGTH, WIDTH, HEADS, LAYERS = 32, 48, 4, 2


class Text:
    """The characters as numbers: nine tenths to learn from, and the rest."""

    def __init__(self):
        text = "".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
        letters = sorted(set(text))
        place = {letter: index for index, letter in enumerate(letters)}
        data = torch.tensor([place[letter] for letter in text])
        self.letters = len(letters)
        self.learnt, self.held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10:]


class Net(torch.nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letter, self.position = torch.nn.Embedding(letters, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True) for _ in range(LAYERS))
        self.out = torch.nn.Linear(WIDTH, letters)
        self.mask = torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1)

    def forward(self, x):
        x = self.letter(x) + self.position(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.out(x)

    def loss(self, source, generator, batch):
        """The loss on texts at random places."""
        at = torch.randint(len(source) - LENGTH - 1, (batch,), generator=generator)
        rows = torch.stack([source[i: i + LENGTH + 1] for i in at.tolist()])
        return torch.nn.functional.cross_entropy(self(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def held_out_loss(self, text):
        """The same texts in each run."""
        with torch.no_grad():
            chance = torch.Generator().manual_seed(7)
            return sum(self.loss(text.held_out, chance, 32).item() for _ in range(20)) / 20


def register(net, ctx):
    """The parameters of the net, with gradients of zeros, in a context. Returns them."""
    params = list(net.parameters())
    for each in params:
        each.grad = torch.zeros_like(each)
    for name, each in net.named_parameters():
        ctx.register(name, each.detach().numpy(), each.grad.numpy())
    ctx.commit()
    return params


def rate(step, steps):
    """The learning rate of AdamW in a step: it rises, and then falls to a tenth."""
    return 3e-3 * min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
