"""Compiles averaging.cc and the example with what pkg-config says about ddp-torch, and runs them on some ranks.

    libtorch_test.py CXX PREFIX LIBDIR SCRATCH     PREFIX: of the installed libddp

libtorch is looked for in DDP_TORCH (a folder with its include and lib), in the PyTorch of this Python, and in /usr.
"""
import importlib.util
import os
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[2]


def torch_folder():
    spec = importlib.util.find_spec("torch")
    for folder in (os.environ.get("DDP_TORCH"), spec and os.path.dirname(spec.origin), "/usr"):
        if folder and os.path.exists(os.path.join(folder, "include/torch/csrc/api/include/torch/torch.h")):
            return pathlib.Path(folder)
    print("skipped: libtorch is not installed (Debian: libtorch-dev, or DDP_TORCH names its folder)")
    sys.exit()


def main():
    compiler, prefix, libdir, scratch = sys.argv[1], *map(pathlib.Path, sys.argv[2:5])
    torch = torch_folder()
    os.environ["PKG_CONFIG_PATH"] = str(prefix / libdir / "pkgconfig")
    # A Python package of PyTorch brings the libraries that it needs, in folders of their own.
    beside = [str(folder) for folder in torch.parent.glob("nvidia/*/lib")]
    os.environ["LD_LIBRARY_PATH"] = ":".join([str(prefix / libdir), str(torch / "lib"), *beside])
    said = subprocess.run(["pkg-config", "--cflags", "--libs", f"--define-variable=torch={torch}", "ddp-torch"], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    flags = shlex.split(said)
    config = torch / "share/cmake/Torch/TorchConfig.cmake"
    if config.exists() and "_GLIBCXX_USE_CXX11_ABI=0" in config.read_text():
        flags.append("-D_GLIBCXX_USE_CXX11_ABI=0")
    standard = "c++20" if "C++20 or later" in (torch / "include/ATen/ATen.h").read_text() else "c++17"  # PyTorch of 2026 needs it
    digits = scratch / "idx.o"
    subprocess.run(["cc", "-O2", f'-DMNIST_DATA_DIR="{SOURCE}/examples/data/mnist"', "-c", SOURCE / "examples/c/idx.c", "-o", digits],
                   check=True)

    def build(source, *more):
        program = scratch / source.stem
        subprocess.run([compiler, f"-std={standard}", "-O1", "-Wall", source, *more, *flags, "-o", program], check=True)
        return program

    def run(*command):
        return subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True).stdout

    ddprun = prefix / "bin/ddprun"
    averaging = build(HERE / "averaging.cc", "-DDDP_EXPERIMENTAL")  # its ranks meet at a barrier of the store
    for ranks in (2, 3):
        said = run(ddprun, "-n", str(ranks), averaging)
        assert said.count("all held") == ranks, said
    example = build(SOURCE / "examples/cpp/libtorch_mnist.cc", f'-DMNIST_DATA_DIR="{SOURCE}/examples/data/mnist"', digits, "-lz")
    run(example, "1", scratch / "one.pt", "double")
    said = run(ddprun, "-n", "2", example, "1", scratch / "two.pt", "double")
    apart = float(run(averaging, scratch / "one.pt", scratch / "two.pt"))
    print(said, "weights of one process and of two ranks:", apart)
    assert apart < 1e-12, apart


if __name__ == "__main__":
    main()
