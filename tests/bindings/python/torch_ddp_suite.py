"""PyTorch's own tests of DistributedDataParallel, run against ddp.torch.DistributedDataParallel.

    torch_ddp_suite.py [--only REGEX] [--world-size N]    runs each test with PyTorch's class, then with ours, and prints a table

The tests are those of the installed PyTorch (torch.testing._internal.distributed.distributed_test), over Gloo. Most of them ask for
GPUs. Here they get the processor instead: a device that a test names is "cpu". What fails with PyTorch's own class is then no
measure of ours, and the table counts it apart.

Verdicts:
    passes        with both classes
    private       the test looks at something of PyTorch's class that is not public, and ours has no such thing
    differs       EXPECTED says why
    no measure    fails or is skipped with PyTorch's class
    FAILS         with our class only. The exit status is then 1
"""
import argparse
import functools
import inspect
import os
import re
import subprocess
import sys
import tempfile

ROLE, PYTORCH, OURS = "DDP_TORCH_SUITE", "PyTorch", "libddp"

# Why a test that passes with PyTorch's class may fail with ours.
WORDS = "ours is an error of libddp, in other words"
EXPECTED = {
    "test_DistributedDataParallel_requires_grad": WORDS,
    "test_ddp_model_diff_num_params_across_ranks": WORDS,
    "test_ddp_model_diff_shape_across_ranks": WORDS,
    "test_ddp_multiple_nested_unused_params_err_ignore_params": WORDS,
    "test_ddp_multiple_nested_unused_params_error": WORDS,
    "test_ddp_unused_params_rebuild_buckets_exception": WORDS,
    "test_invalid_static_graph": WORDS,
    "test_ddp_profiling_torch_profiler": "looks for the allreduce of torch.distributed in a profile, and ours is not in it",
    "test_ddp_python_error_logged": "looks for an error in the log of PyTorch's class",
    "test_verify_model_across_rank_without_logger": "hands process_group to a private function of PyTorch",
}
PRIVATE = re.compile(r"AttributeError: .*(?:DistributedDataParallel|Reducer)' (?:object )?has no attribute "
                     r"'(_\w+|reducer|logger|broadcast_bucket_size)'")


# A PROCESS THAT RUNS ONE TEST, AND ITS RANKS

def on_the_processor():
    """Devices that tests name become the processor."""
    import torch
    from torch.overrides import TorchFunctionMode
    import torch.testing._internal.common_device_type  # looks at devices as it is imported

    def moved(device):
        if isinstance(device, bool):
            return device
        if isinstance(device, int) or (isinstance(device, str) and device.startswith("cuda")):
            return "cpu"
        return torch.device("cpu") if isinstance(device, torch.device) and device.type == "cuda" else device

    class OnProcessor(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.to:
                args = (args[0], *map(moved, args[1:]))
            if "device" in kwargs:
                kwargs["device"] = moved(kwargs["device"])
            return func(*args, **kwargs)

    OnProcessor().__enter__()  # for as long as the process lives
    to = torch.nn.Module.to
    torch.nn.Module.cuda = lambda module, device=None: module
    torch.nn.Module.to = lambda module, *args, **kwargs: to(module, *map(moved, args), **{
        name: moved(value) if name == "device" else value for name, value in kwargs.items()})
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.manual_seed = lambda seed: None
    torch.cuda.manual_seed_all = lambda seed: None


def patch():
    import torch
    on_the_processor()
    if os.environ[ROLE] == OURS:
        from ddp.torch import DistributedDataParallel
        torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
        torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
    parallel = torch.nn.parallel.DistributedDataParallel
    init = parallel.__init__

    @functools.wraps(init)
    def without_devices(self, module, device_ids=None, output_device=None, *args, **kwargs):
        init(self, module, None, None, *args, **kwargs)

    parallel.__init__ = without_devices


def with_tests():
    """The class that holds the tests. Ranks look for it here, by name: they import this file again."""
    patch()
    from torch.testing._internal.distributed import distributed_test

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

    Tests.__qualname__ = "Tests"
    return Tests


if ROLE in os.environ:
    Tests = with_tests()


# THE TABLE

def names(pattern):
    """Of the tests that make a DistributedDataParallel, by what their source says."""
    from torch.testing._internal.distributed.distributed_test import DistributedTest
    base = DistributedTest._DistTestBase
    for name in sorted(dir(base)):
        if name.startswith("test_") and re.search(pattern, name):
            source = inspect.getsource(inspect.unwrap(getattr(base, name)))
            helpers = {helper for helper in re.findall(r"self\.(_\w+)\(", source) if hasattr(base, helper)}
            source += "".join(inspect.getsource(inspect.unwrap(getattr(base, helper))) for helper in helpers)
            if "DistributedDataParallel" in source:
                yield name


def run(name, role):
    """ok, skipped, or the last line of the first error; and all that was printed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, ROLE: role, "TEMP_DIR": folder}
        os.makedirs(os.path.join(folder, "barrier"))
        os.makedirs(os.path.join(folder, "test_dir"))
        try:
            done = subprocess.run([sys.executable, __file__, f"Tests.{name}"], env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired as ended:
            return "no end within 300 s", str(ended.stdout)
    if done.returncode == 0:
        return ("skipped" if "skipped=1" in done.stdout else "ok"), done.stdout
    lines = [line for line in re.findall(r"^\S*(?:Error|Exception)\b.*$", done.stdout, re.MULTILINE)
             if not re.match(r"RuntimeError: Process \d+ exited", line)]
    return (lines[0] if lines else done.stdout.strip().splitlines()[-1]), done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--output", action="store_true", help="what failing tests print")
    given = parser.parse_args()
    counts, unexpected = {}, []
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(given.world_size), OMP_NUM_THREADS="1", DDP_TIMEOUT_MS="60000")
    for name in names(given.only):
        theirs, output = run(name, PYTORCH)
        ours, output = run(name, OURS) if theirs == "ok" else ("", output)
        private = PRIVATE.search(ours)
        verdict = ("no measure" if theirs != "ok" else "passes" if ours == "ok" else "private" if private else
                   "differs" if name in EXPECTED else "FAILS")
        counts[verdict] = counts.get(verdict, 0) + 1
        if verdict == "FAILS":
            unexpected.append(name)
        reason = {"differs": EXPECTED.get(name), "no measure": f"with PyTorch's class: {theirs}", "passes": "",
                  "private": private and private[1]}.get(verdict, ours)
        print(f"{name:70} {verdict:10} {reason[:200]}", flush=True)
        if given.output and verdict != "passes":
            print(output)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    if ROLE in os.environ:
        from torch.testing._internal.common_utils import run_tests
        run_tests()
    else:
        main()
