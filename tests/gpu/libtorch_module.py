#!/usr/bin/env python3
"""ddp_torch.hpp with modules on a GPU: tests/bindings/libtorch/averaging.cc, beside one process that has the whole batch.

    libtorch_module.py SOURCES LIBDDP SCRATCH COMMAND...

SOURCES: a folder with averaging.cc and what it includes. LIBDDP: that of libddp.so.0. The program is made in SCRATCH, with the libtorch of
this Python's PyTorch, unless it is there. COMMAND starts its ranks. DDP_TEST_DEVICE=cuda:0 is the device, which all ranks may share;
DDP_TEST_BACKEND=nccl a backend of libddp. Prints "skipped: REASON" where there is no PyTorch with a GPU, or no compiler.
"""
import os
import pathlib
import shutil
import subprocess
import sys

from torch_or_skip import skip, torch


def build(sources, libddp, program):
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        skip("there is no c++")
    home = pathlib.Path(torch.__file__).parent
    standard = "c++20" if "C++20 or later" in (home / "include/ATen/ATen.h").read_text() else "c++17"
    subprocess.run([compiler, f"-std={standard}", "-O1", "-DDDP_EXPERIMENTAL", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                    sources / "averaging.cc", "-I", sources / "include", "-isystem", home / "include", "-isystem",
                    home / "include/torch/csrc/api/include", "-L", libddp, "-l:libddp.so.0", "-L", home / "lib", "-Wl,--no-as-needed",
                    "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10", f"-Wl,-rpath,{libddp}:{home / 'lib'}", "-Wl,--allow-shlib-undefined",
                    "-o", program], check=True)


def main():
    sources, libddp, scratch = map(pathlib.Path, sys.argv[1:4])
    os.environ.setdefault("DDP_TEST_DEVICE", "cuda:0")
    if os.environ["DDP_TEST_DEVICE"].startswith("cuda") and not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    program = scratch / f"averaging-{torch.__version__}"
    if not program.exists():
        part = program.with_suffix(f".{os.getpid()}")
        build(sources, libddp, part)
        part.rename(program)
    os.execvp(sys.argv[4], [*sys.argv[4:], str(program)])


if __name__ == "__main__":
    main()
