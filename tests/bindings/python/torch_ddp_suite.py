"""PyTorch's own tests of DistributedDataParallel, run against ddp.torch.DistributedDataParallel.

    torch_ddp_suite.py [--only REGEX] [--world-size N] [--folder FOLDER]

It runs all tests with PyTorch's class, then those that passed with ours, and prints a table. What a test prints is in FOLDER, and a test
ends after 100 s.

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
import contextlib
import functools
import inspect
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import unittest

ROLE, PYTORCH, OURS = "DDP_TORCH_SUITE", "PyTorch", "libddp"
RESULTS = "DDP_TORCH_SUITE_RESULTS"  # a descriptor
LIMIT = 100  # seconds for a test

# Why a test that passes with PyTorch's class may fail with ours.
WORDS = "ours is an error of libddp, in other words"
LOG = "looks in the log for what PyTorch's class writes there: errors, and figures of its reducer"
EXPECTED = {
    "test_ddp_broadcast_buffers_deprecation_warning": "looks for a warning of broadcast_buffers. With ours it has two values with a meaning each",
    "test_ddp_device_mesh_initialization": WORDS,
    "test_ddp_logging_data_cpu": LOG,
    "test_ddp_multiple_nested_unused_params_err_ignore_params": WORDS + ", and comes a step earlier",
    "test_ddp_multiple_nested_unused_params_error": WORDS + ", and comes a step earlier",
    "test_ddp_profiling_torch_profiler": "looks for the allreduce of torch.distributed in a profile, and ours is not in it",
    "test_ddp_python_error_logged": LOG,
    "test_ddp_uneven_inputs": WORDS + ". What the test does before has passed",
    "test_ddp_unused_params_rebuild_buckets_exception": WORDS + ", and comes a step earlier",
    "test_different_graph_across_ranks": "looks for new buckets after the first step. Ours stay where their order is right",
    "test_invalid_static_graph": WORDS,
    "test_static_graph_api_cpu": LOG,
}
PRIVATE = re.compile(r"AttributeError: .*(?:DistributedDataParallel|Reducer)' (?:object )?has no attribute "
                     r"'(_\w+|reducer|logger|broadcast_bucket_size)'")


# A PROCESS THAT RUNS TESTS WITH ONE CLASS, AND ITS RANKS

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
    torch.cuda._lazy_init = lambda: None
    if hasattr(torch, "accelerator"):
        torch.accelerator.current_device_index = lambda: 0
        torch.accelerator.synchronize = lambda device=None: None
    torch.cuda.manual_seed = lambda seed: None
    torch.cuda.manual_seed_all = lambda seed: None


def patch():
    import torch
    on_the_processor()
    if os.environ[ROLE] == OURS:
        from ddp.torch import DistributedDataParallel
        DistributedDataParallel._authoritative_rank = int(os.environ["WORLD_SIZE"]) - 1  # so that tests go on after they have looked at it
        DistributedDataParallel._set_ddp_sink_clone = lambda self, clone: None  # ... have set it
        torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
        torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
    parallel = torch.nn.parallel.DistributedDataParallel
    init = parallel.__init__

    @functools.wraps(init)
    def without_devices(self, module, device_ids=None, output_device=None, *args, **kwargs):
        init(self, module, None, None, *args, **kwargs)

    parallel.__init__ = without_devices


def tests():
    """The class that holds the tests."""
    patch()
    import torch.multiprocessing
    from torch.testing._internal.distributed import distributed_test

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)  # which import nothing again

    return Tests


def run_tests(names):
    """Runs these tests. A line on a descriptor says how each ended: its name, and ok, skipped, or the first error."""
    cls = tests()
    for name in names:
        print(f"=== {name}", flush=True)
        result = unittest.TestResult()
        unittest.TestSuite([cls(name)]).run(result)
        for _, trace in result.errors + result.failures:
            print(trace, flush=True)
        ended = (first_error(result) if result.errors or result.failures else "skipped" if result.skipped else "ok")
        os.write(int(os.environ[RESULTS]), f"{name} {ended}\n".encode())


def first_error(result):
    trace = "\n".join(trace for _, trace in result.errors + result.failures)
    lines = [line for line in re.findall(r"^\S*(?:Error|Exception|Exit)\b.*$", trace, re.MULTILINE)
             if not re.match(r"RuntimeError: Process \d+ (?:exited|terminated)", line)]
    return (lines or trace.strip().splitlines()[-1:] or ["?"])[0]


# THE TABLE

def names(pattern):
    """The names of the tests that make a DistributedDataParallel, judged by their source."""
    from torch.testing._internal.distributed.distributed_test import DistributedTest
    base = DistributedTest._DistTestBase
    for name in sorted(dir(base)):
        if name.startswith("test_") and re.search(pattern, name):
            source = inspect.getsource(inspect.unwrap(getattr(base, name)))
            helpers = {helper for helper in re.findall(r"self\.(_\w+)\(", source) if hasattr(base, helper)}
            source += "".join(inspect.getsource(inspect.unwrap(getattr(base, helper))) for helper in helpers)
            if "DistributedDataParallel" in source:
                yield name


def results_of(role, wanted, folder):
    """{name: how it ended}. A process that ends too early, or says nothing for too long, is followed by another one."""
    results = {}
    with open(folder / f"{role}.log", "w", encoding="utf-8") as output:
        while len(results) < len(wanted):
            left = [name for name in wanted if name not in results]
            results.update(some_results_of(role, left, folder, output))
            if left[0] not in results:
                results[left[0]] = f"its process ended, or said nothing for {2 * LIMIT} s: see the log"
    return results


def some_results_of(role, wanted, folder, output):
    results, said = {}, b""
    reader, writer = os.pipe()
    runner = subprocess.Popen([sys.executable, "-B", __file__, *wanted], pass_fds=[writer], stdout=output, stderr=subprocess.STDOUT,
                              env={**os.environ, ROLE: role, RESULTS: str(writer), "TEMP_DIR": str(folder)}, start_new_session=True)
    os.close(writer)
    while select.select([reader], [], [], 2 * LIMIT)[0]:
        part = os.read(reader, 1 << 16)
        said += part
        *lines, said = said.split(b"\n") if part else (said, b"")
        for line in filter(None, lines):
            name, _, ended = line.decode().partition(" ")
            results[name] = ended
            print(f"{role:8} {name:72} {ended[:100]}", file=sys.stderr, flush=True)
        if not part:
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(runner.pid, signal.SIGKILL)  # and what a test has left
    runner.wait()
    os.close(reader)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, help="for what tests print; the default is a new one")
    given = parser.parse_args()
    folder = given.folder or pathlib.Path(tempfile.mkdtemp(prefix="torch_ddp_suite."))
    for part in ("barrier", "test_dir"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(given.world_size), OMP_NUM_THREADS="1", DDP_TIMEOUT_MS="60000",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(LIMIT))
    wanted = list(names(given.only))
    theirs = results_of(PYTORCH, wanted, folder)
    ours = results_of(OURS, [name for name in wanted if theirs[name] == "ok"], folder)
    counts = {}
    for name in wanted:
        private = PRIVATE.search(ours.get(name, ""))
        verdict = ("no measure" if name not in ours else "passes" if ours[name] == "ok" else "private" if private else
                   "differs" if name in EXPECTED else "FAILS")
        counts[verdict] = counts.get(verdict, 0) + 1
        reason = {"differs": EXPECTED.get(name), "no measure": f"with PyTorch's class: {theirs[name]}", "passes": "",
                  "private": private and private[1]}.get(verdict, ours.get(name))
        print(f"{name:72} {verdict:10} {reason[:200]}".rstrip(), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())), f"(logs: {folder})")
    sys.exit("FAILS" in counts)


if __name__ == "__main__":
    if ROLE in os.environ:
        run_tests(sys.argv[1:])
    else:
        main()
