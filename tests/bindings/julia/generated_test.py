"""The generated Julia module depends on the headers alone: two runs of SWIG, whose XML differs, give the same bytes, those of the
build.

    generated_test.py SWIG BUILT SCRATCH
"""
import os
import pathlib
import subprocess
import sys

SWIG, BUILT, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
ROOT = pathlib.Path(os.environ["DDP_SOURCE"])


def generate(name):
    xml, module = SCRATCH / f"{name}.xml", SCRATCH / f"{name}.jl"
    subprocess.run([SWIG, "-xml", "-Werror", f"-I{ROOT / 'include'}", "-o", xml, ROOT / "bindings/swig/ddp.i"], check=True, timeout=100)
    subprocess.run([sys.executable, "-B", ROOT / "bindings/julia/generate.py", xml, "libddp.so.0", module], check=True, timeout=100)
    return module.read_text()


SCRATCH.mkdir(parents=True, exist_ok=True)
assert generate("once") == generate("again") == BUILT.read_text(), "the module is another one from run to run"
