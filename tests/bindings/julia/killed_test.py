"""A rank is killed: ddprun lets the others print their whole error, which takes Julia seconds, and Julia never dies printing it.

    killed_test.py ROUNDS
"""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

RANKS = 3


def check(output, status):
    assert status == 137, f"status {status}"
    assert re.search(r"^ddprun on .*: rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)(: .*)?$", output, re.M), "the cause"
    assert "signal (" not in output, "Julia crashed while it reported"
    for rank in (0, 2):
        lines = [line.split(" ", 1)[1] for line in output.splitlines() if line.startswith(f"[{rank}] ")]
        assert re.match(r"ERROR: LoadError: DDP_ERROR_RANK_FAILED: rank 1 \(pid \d+ on ", lines[0]), f"rank {rank}: its error"
        assert "Stacktrace:" in lines, f"rank {rank}: its trace"
        assert lines[-1].startswith("in expression starting at") and "killed.jl" in lines[-1], f"rank {rank}: its last line"


for _ in range(int(sys.argv[1])):
    done = subprocess.run([os.environ["DDPRUN"], "-n", str(RANKS), "--report-time", str(40 * SLACK), os.environ["JULIA"],
                           "--startup-file=no", "--compile=min", str(pathlib.Path(__file__).with_name("killed.jl"))],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
    try:
        check(done.stdout, done.returncode)
    except (AssertionError, IndexError) as error:
        sys.exit(f"{error}\n{done.stdout}")
