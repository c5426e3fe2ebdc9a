"""Horovod's own tests and examples, run with ddp.horovod in place of horovod.

    horovod_suite.py [--only REGEX] [--ranks N] [--source FOLDER] [--torch PYTHON] [--tensorflow PYTHON] FOLDER

It fetches Horovod at COMMIT into FOLDER, or takes the checkout that --source names. It copies the files of TABLE, changes `horovod` to
`ddp.horovod` in their imports and runs each on N ranks. --torch and --tensorflow name Pythons that have PyTorch with pytest, and TensorFlow
with tf_keras and pytest. What a file prints is in FOLDER. The exit status is 1 if a file does worse than TABLE says.

Data sets and large models are stand-ins of a few random samples, and examples make fewer steps, because this is not about accuracy.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import typing

COMMIT = "2626dc87a3a8eb8fb7d2216198ce45bce0f9e65a"
REPOSITORY = "https://github.com/horovod/horovod"
LIMIT = 400  # seconds for a file


class File(typing.NamedTuple):
    """A file of Horovod's. why: it does not pass; `failing`: so many tests in it fail, for this reason."""

    path: str
    arguments: str = ""
    changes: tuple = ()  # pairs of texts: fewer steps
    failing: int = 0
    why: str = ""
    options: tuple = ()  # of ddprun
    one: bool = False  # on one rank


ELASTIC = ("--min-ranks", "1")
SESSIONS = "TensorFlow 1: sessions, tf.ConfigProto, or estimators, which TensorFlow 2.21 does not have"
SERVICE = "horovod.tensorflow.data, the services of tf.data, is not there"
LOCAL = "local variables, Partial* and the batch normalization of TensorFlow are not there"
BENCHMARK = "--no-cuda --batch-size 4 --num-warmup-batches 1 --num-batches-per-iter 2 --num-iters 2"
TABLE = [
    # PyTorch
    File("test/parallel/test_torch.py", "-k 'not timeline'", failing=1,
         why="broadcast_optimizer_state makes no step of zeros, so there is no .grad after it"),
    File("test/parallel/test_adasum_pytorch.py"),
    File("test/single/test_torch_elastic.py", one=True),
    File("examples/adasum/adasum_small_model.py", "--op Adasum"),
    File("examples/pytorch/pytorch_mnist.py", "--epochs 2 --no-cuda"),
    File("examples/pytorch/pytorch_synthetic_benchmark.py", BENCHMARK),
    File("examples/pytorch/pytorch_imagenet_resnet50.py", "--epochs 2 --no-cuda --warmup-epochs 1 --batch-size 8"),
    File("examples/pytorch/pytorch_lightning_mnist.py", why="asks Lightning for its accelerator 'horovod', which Lightning has dropped"),
    File("examples/elastic/pytorch/pytorch_mnist_elastic.py", "--epochs 2 --no-cuda", options=ELASTIC),
    File("examples/elastic/pytorch/pytorch_synthetic_benchmark_elastic.py", BENCHMARK, options=ELASTIC),
    File("examples/elastic/pytorch/pytorch_imagenet_resnet50_elastic.py", "--epochs 2 --no-cuda --warmup-epochs 1 --batch-size 8",
         options=ELASTIC),
    # TensorFlow and Keras
    File("test/parallel/test_tensorflow.py", failing=4, why=f"{LOCAL}; broadcast_global_variables needs sessions"),
    File("test/parallel/test_tensorflow_process_sets.py", failing=2,
         why="another class of error; and a limit of 1e-8 in float16, which NumPy 2 takes for 0"),
    File("test/parallel/test_adasum_tensorflow.py"),
    File("test/parallel/test_process_sets_static.py", failing=1, why="asks private members of Horovod's for the numbers of process sets"),
    File("test/parallel/test_tensorflow_keras.py"),
    File("test/parallel/test_tensorflow2_keras.py", failing=8, why=f"private members of Horovod's optimizer; {LOCAL}"),
    File("test/parallel/test_tensorflow2_keras_process_sets.py"),
    File("test/parallel/test_keras.py", why=SESSIONS),
    File("examples/tensorflow2/tensorflow2_keras_mnist.py", changes=(("500 // hvd.size()", "4"), ("epochs=24", "epochs=4"))),
    File("examples/tensorflow2/tensorflow2_mnist.py", changes=(("10000 // hvd.size()", "12"),)),
    File("examples/tensorflow2/tensorflow2_synthetic_benchmark.py", BENCHMARK),
    File("examples/tensorflow2/tensorflow2_keras_synthetic_benchmark.py",
         "--no-cuda --batch-size 4 --num-batches-per-iter 2 --num-iters 2"),
    File("examples/elastic/tensorflow2/tensorflow2_mnist_elastic.py", options=ELASTIC),
    File("examples/elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py", changes=(("500 // hvd.size()", "4"), ("24-state", "3-state")),
         options=ELASTIC),
    File("examples/elastic/tensorflow2/tensorflow2_synthetic_benchmark_elastic.py", BENCHMARK, options=ELASTIC),
    File("examples/keras/keras_mnist.py", why=SESSIONS),
    File("examples/keras/keras_mnist_advanced.py", why=SESSIONS),
    File("examples/keras/keras_imagenet_resnet50.py", why=SESSIONS),
    *(File(f"examples/tensorflow/tensorflow_{name}.py", why=SESSIONS)
      for name in ("keras_mnist", "mnist", "mnist_eager", "mnist_estimator", "synthetic_benchmark", "word2vec")),
    *(File(f"examples/tensorflow2/tensorflow2_mnist_data_service{name}.py", why=SERVICE)
      for name in ("", "_train_fn_compute_side_dispatcher", "_train_fn_training_side_dispatcher")),
]

# Names that tests import from Horovod's other modules.
COMMON = '''
    import contextlib, os, tempfile
    from packaging import version
    def mpi_env_rank_and_size(): return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    def get_env_rank_and_size(): return mpi_env_rank_and_size()
    def skip_or_fail_gpu_test(test, message): test.skipTest(message)
    def is_version_greater_equal_than(one, other): return version.parse(one) >= version.parse(other)
    @contextlib.contextmanager
    def temppath():
        with tempfile.TemporaryDirectory() as folder: yield os.path.join(folder, "temp_test_file")
'''
TORCHVISION = '''
    import torch
    class _Samples(torch.utils.data.Dataset):
        shape, classes, count = (1, 28, 28), 10, 256
        def __init__(self, *_, **__):
            generator = torch.Generator().manual_seed(1)
            self.x = torch.randn((self.count, *self.shape), generator=generator)
            self.y = torch.randint(0, self.classes, (self.count,), generator=generator)
        def __len__(self): return self.count
        def __getitem__(self, index): return self.x[index], int(self.y[index])
    class datasets:
        MNIST = _Samples
        class ImageFolder(_Samples): shape, classes, count = (3, 32, 32), 1000, 64
    class _Any:
        def __getattr__(self, name): return lambda *_, **__: None
    transforms = _Any()
    SummaryWriter = lambda *_, **__: _Any()
    class models:
        def __getattr__(self, name): raise AttributeError(name)
        @staticmethod
        def resnet50(*_, **__):
            return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                       torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 1000))
'''
# Before an example of TensorFlow's.
KERAS_DATA = '''
    import numpy, tensorflow
    def _data(*_, **__):
        random = numpy.random.default_rng(1)
        one = lambda count: (random.integers(0, 255, (count, 28, 28)).astype("uint8"), random.integers(0, 10, count).astype("uint8"))
        return one(512), one(128)
    import keras
    keras.datasets.mnist.load_data = tensorflow.keras.datasets.mnist.load_data = _data
    def _small(*_, **__):
        layers = tensorflow.keras.layers
        return tensorflow.keras.Sequential([layers.Conv2D(4, 3, strides=8), layers.BatchNormalization(), layers.GlobalAveragePooling2D(),
                                            layers.Dense(1000, activation="softmax")])
    tensorflow.keras.applications.ResNet50 = _small
'''
IMPORTS = (
    (r"^from torch\.utils\.tensorboard import SummaryWriter", "from torchvision import SummaryWriter"),
    (r"^(\s*)from horovod\.tensorflow\.util import _executing_eagerly",
     r"\1from tensorflow import executing_eagerly as _executing_eagerly"),
    (r"^(\s*)from horovod\.(?:runner\.common\.util\.env|common\.util) +import", r"\1from common import"),
    (r"\bhvd\.(?:util\.)?_executing_eagerly", "tf.executing_eagerly"),
    (r"^run_all_in_graph_and_eager_modes\(\w+\)$", ""),  # graphs are for sessions: only eager
    (r"^(\s*)import horovod$", r"\1import ddp.horovod as horovod"),
    (r"^(\s*)(import|from) horovod\.", r"\1\2 ddp.horovod."),
)


def checkout(folder):
    """Horovod at COMMIT."""
    source = folder / "horovod"
    if not (source / "examples").exists():
        source.mkdir(parents=True, exist_ok=True)
        for command in (("init", "-q"), ("fetch", "-q", "--depth", "1", REPOSITORY, COMMIT), ("checkout", "-q", "FETCH_HEAD")):
            subprocess.run(["git", "-C", source, *command], check=True, timeout=600)
    return source


def prepare(source, folder):
    """Copies of all files, with the changed imports, and the stand-ins."""
    copies = folder / "copies"
    for file in [*source.glob("test/**/*.py"), *source.glob("examples/**/*.py")]:
        text = file.read_text()
        for pattern, other in IMPORTS:
            text = re.sub(pattern, other, text, flags=re.MULTILINE)
        to = copies / file.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)
    for name, text in (("common", COMMON), ("torchvision", TORCHVISION), ("keras_data", KERAS_DATA)):
        (copies / "stand_ins").mkdir(exist_ok=True)
        (copies / "stand_ins" / f"{name}.py").write_text(textwrap.dedent(text))
    (copies / "test/utils/common.py").write_text(textwrap.dedent(COMMON))
    return copies


def run(file, copies, options):
    """(passed, failed, skipped, output) of a file: of its tests, or of the one program. None: there is no Python for it."""
    path = copies / file.path
    text = path.read_text()
    for old, new in file.changes:
        if old not in text:
            raise SystemExit(f"{file.path} does not hold {old!r}")
        text = text.replace(old, new)
    path.write_text(text)
    is_tensorflow = "tensorflow" in text or "keras" in file.path
    python = options.tensorflow if is_tensorflow else options.torch
    if python is None:
        return None
    is_test = file.path.startswith("test/")
    if is_test:
        command = f"-m pytest -q -rA --tb=short --no-header -p no:cacheprovider {path} {file.arguments}"
    elif is_tensorflow:
        program = 'import sys, keras_data, runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
        command = f"-c '{program}' {path} {file.arguments}"
    else:
        command = f"{path} {file.arguments}"
    ranks = 1 if file.one else options.ranks
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1", "TMPDIR": str(copies), "DDP_TIMEOUT_MS": "20000",
                   "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1",
                   "PYTHONPATH": os.pathsep.join([str(copies / "stand_ins"), os.environ.get("PYTHONPATH", "")])}
    shell = f"HOROVOD_RANK=$RANK HOROVOD_SIZE=$WORLD_SIZE exec {python} -B {command}"
    with open(copies.parent / (file.path.replace("/", "-") + ".txt"), "w+", encoding="utf-8") as log:
        launcher = subprocess.Popen([os.environ["DDPRUN"], "-n", str(ranks), *file.options, "bash", "-c", shell], stdout=log,
                                    stderr=subprocess.STDOUT, env=environment, cwd=copies)
        try:
            status = launcher.wait(LIMIT)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            launcher.wait()
            status = -1
        log.seek(0)
        output = log.read()
    if not is_test:
        return (1, 0, 0, output) if status == 0 else (0, 1, 0, output)
    # a test counts once, and fails if it fails on any rank
    failed = set(re.findall(r"^\[\d+\] (?:FAILED|ERROR) (\S+)", output, re.MULTILINE))
    passed = set(re.findall(r"^\[\d+\] PASSED (\S+)", output, re.MULTILINE)) - failed
    skipped = sum(int(number) for number in re.findall(r"^\[0\] SKIPPED \[(\d+)\]", output, re.MULTILINE))
    if status != 0 and not failed:
        failed = {"the whole file"}
    return len(passed), len(failed), skipped, output


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--torch", default=sys.executable)
    parser.add_argument("--tensorflow")
    options = parser.parse_args()
    folder = options.folder.resolve()
    copies = prepare(options.source or checkout(folder), folder)
    worse = files = good = 0
    print("| File | Passes | Fails | Skipped | |\n|---|---|---|---|---|")
    for file in TABLE:
        if not re.search(options.only, file.path):
            continue
        result = run(file, copies, options) if not file.why or file.failing else None
        if result is None:
            print(f"| {file.path} | - | - | - | {file.why or 'no Python for it'} |", flush=True)
            continue
        passed, failed, skipped, _ = result
        files, good = files + 1, good + (failed == 0)
        worse += failed > file.failing
        print(f"| {file.path} | {passed} | {failed} | {skipped} | {file.why if failed else ''} |", flush=True)
    print(f"{files} files run, {good} without a failure, {worse} worse than expected")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
