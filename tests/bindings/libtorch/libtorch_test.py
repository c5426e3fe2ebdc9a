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


class Toolchain:
    """Compiles and runs programs with an installed libddp and a libtorch."""

    def __init__(self, compiler, prefix, libdir, scratch, torch):
        self.compiler, self.scratch, self.ddprun = compiler, scratch, prefix / "bin/ddprun"
        os.environ["PKG_CONFIG_PATH"] = str(prefix / libdir / "pkgconfig")
        # A Python package of PyTorch brings the libraries that it needs, in folders of their own.
        beside = [str(folder) for folder in torch.parent.glob("nvidia/*/lib")]
        os.environ["LD_LIBRARY_PATH"] = ":".join([str(prefix / libdir), str(torch / "lib"), *beside])
        said = subprocess.run(["pkg-config", "--cflags", "--libs", f"--define-variable=torch={torch}", "ddp-torch"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        self.flags = shlex.split(said)
        config = torch / "share/cmake/Torch/TorchConfig.cmake"
        if config.exists() and "_GLIBCXX_USE_CXX11_ABI=0" in config.read_text():
            self.flags.append("-D_GLIBCXX_USE_CXX11_ABI=0")
        # PyTorch of 2026 needs C++20
        self.standard = "c++20" if "C++20 or later" in (torch / "include/ATen/ATen.h").read_text() else "c++17"

    def build(self, source, *more):
        program = self.scratch / source.stem
        subprocess.run([self.compiler, f"-std={self.standard}", "-O1", "-Wall", source, *more, *self.flags, "-o", program], check=True)
        return program

    @staticmethod
    def run(*command):
        return subprocess.run(command, check=True, timeout=200, stdout=subprocess.PIPE, text=True).stdout

    def all_hold(self, ranks, program):
        said = self.run(self.ddprun, "-n", str(ranks), program)
        assert said.count("all held") == ranks, said


def main():
    compiler, prefix, libdir, scratch = sys.argv[1], *map(pathlib.Path, sys.argv[2:5])
    tools = Toolchain(compiler, prefix, libdir, scratch, torch_folder())
    digits = scratch / "idx.o"
    subprocess.run(["cc", "-O2", f'-DMNIST_DATA_DIR="{SOURCE}/examples/data/mnist"', "-c", SOURCE / "examples/c/idx.c", "-o", digits],
                   check=True)
    averaging = tools.build(HERE / "averaging.cc", "-DDDP_EXPERIMENTAL")  # its ranks meet at a barrier of the store
    for ranks in (1, 2, 3):
        tools.all_hold(ranks, averaging)
    example = tools.build(SOURCE / "examples/cpp/libtorch_mnist.cc", f'-DMNIST_DATA_DIR="{SOURCE}/examples/data/mnist"', digits, "-lz")
    tools.run(example, "1", scratch / "one.pt", "double")
    said = tools.run(tools.ddprun, "-n", "2", example, "1", scratch / "two.pt", "double")
    apart = float(tools.run(averaging, scratch / "one.pt", scratch / "two.pt"))
    print(said, "weights of one process and of two ranks:", apart)
    assert apart < 1e-12, apart


if __name__ == "__main__":
    main()
