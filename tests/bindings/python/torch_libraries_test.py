"""ddp.torch.DistributedDataParallel in place of PyTorch's, in the libraries that make one: accelerate, the Trainer of transformers, Lightning.

    torch_libraries_test.py accelerate|transformers|lightning     on 2 ranks

Each trains a small model, and its weights are those that it gets with PyTorch's class.
"""
import os
import socket
import sys
import tempfile

import support

LIBRARY = sys.argv[1]
SAMPLES, EPOCHS, RATE = 16, 2, 0.1
os.environ.update(ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  CUDA_VISIBLE_DEVICES="")
support.need("torch", *{"accelerate": ["accelerate"], "transformers": ["transformers", "accelerate"], "lightning": ["lightning"]}[LIBRARY])
if support.RANK < 0:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("pytorch", "libddp"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            done = support.run_ranks(2, sys.executable, "-B", sys.argv[0], LIBRARY, timeout=100,
                                     env={"FOLDER": folder, "HOME": folder, "PORT": str(port), "KIND": kind})
        assert done.count("the weights of PyTorch's class") == 2 * (2 if LIBRARY == "lightning" else 1), done
    sys.exit()

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])  # torch.distributed meets there

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402

DistributedDataParallel = nn.parallel.DistributedDataParallel
if os.environ["KIND"] == "libddp":
    from ddp.torch import DistributedDataParallel  # noqa: E402  pylint: disable=ungrouped-imports
    nn.parallel.DistributedDataParallel = nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
torch.set_num_threads(1)


class Samples(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.x, self.y = torch.randn(SAMPLES, 5, generator=generator), torch.randn(SAMPLES, 2, generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def compare(what, module):
    """With what the run before has saved."""
    path = os.path.join(os.environ["FOLDER"], f"{what}-{support.RANK}.pt")
    weights = [tensor.detach().clone() for tensor in module.parameters()]
    if os.environ["KIND"] == "pytorch":
        torch.save(weights, path)
        return
    worst = max((one - two).abs().max().item() for one, two in zip(weights, torch.load(path), strict=True))
    assert worst < 1e-6, f"weights are {worst} apart"
    print("the weights of PyTorch's class", flush=True)


def loss_of(module, batch):
    return nn.functional.mse_loss(module(batch[0]), batch[1])


def with_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    module = network()
    model, optimizer, loader = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=RATE),
                                                   torch.utils.data.DataLoader(Samples(), batch_size=2))
    assert isinstance(model, DistributedDataParallel) and accelerator.num_processes == 2
    for _ in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(loss_of(model, batch))
                accelerator.clip_grad_norm_(model.parameters(), 1000)
                optimizer.step()
    assert accelerator.unwrap_model(model) is module
    compare("accelerate", module)


def with_transformers():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(1)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=2))
    generator = torch.Generator().manual_seed(2)
    samples = [{"input_ids": torch.randint(0, 50, (6,), generator=generator), "attention_mask": torch.ones(6, dtype=torch.int64),
                "labels": torch.tensor(index % 2)} for index in range(SAMPLES)]
    arguments = TrainingArguments(
        output_dir=os.path.join(os.environ["FOLDER"], str(support.RANK)), per_device_train_batch_size=2, num_train_epochs=EPOCHS,
        learning_rate=RATE, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0, report_to=[], use_cpu=True, save_strategy="no",
        logging_strategy="no", gradient_accumulation_steps=2, disable_tqdm=True, seed=1, weight_decay=0)

    trainer = Trainer(model=model, args=arguments, train_dataset=samples)
    trainer.train()
    assert isinstance(trainer.model_wrapped, DistributedDataParallel), type(trainer.model_wrapped)
    trainer.evaluate(samples)
    compare("transformers", model)


def with_lightning():
    import lightning
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch import strategies
    from lightning.pytorch.strategies import ddp as strategy

    class Ranks(LightningEnvironment):
        """Processes that ddprun has started."""

        creates_processes_externally = True

        def local_rank(self):
            return support.RANK

    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch):
            return loss_of(self.network, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE)

    class Manual(Plain):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch):
            self.optimizers().zero_grad()
            self.manual_backward(loss_of(self.network, batch))
            self.optimizers().step()

    class Strategy(strategies.DDPStrategy):
        def _setup_model(self, model):
            return DistributedDataParallel(model, **self._ddp_kwargs)

    def train(model, chosen):
        loader = torch.utils.data.DataLoader(Samples(), batch_size=2, shuffle=False)
        lightning.Trainer(accelerator="cpu", devices=2, strategy=chosen, max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
                          enable_progress_bar=False, enable_model_summary=False, plugins=[Ranks()]).fit(model, loader)
        compare(type(model).__name__, model)

    strategy.DistributedDataParallel = DistributedDataParallel
    for kind in (Plain, Manual):
        train(kind(), strategies.DDPStrategy() if kind is Plain else Strategy())


{"accelerate": with_accelerate, "transformers": with_transformers, "lightning": with_lightning}[LIBRARY]()
if distributed.is_initialized():
    distributed.destroy_process_group()
