"""ddp_torch.hpp with modules on a device whose memory no processor can touch and whose streams are late: averaging.cc and streams.cc.

    played_test.py CXX PREFIX LIBDIR SCRATCH FAKE_DEVICE

FAKE_DEVICE is libddp-cuda.so of the tests; its folder is $DDP_MODULE_PATH. The device is one of PyTorch: tests/bindings/python/played.
"""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python/played"))
import played  # noqa: E402

played.need()

from libtorch_test import Toolchain, torch_folder  # noqa: E402


def main():
    compiler, prefix, libdir, scratch, fake_device = sys.argv[1], *map(pathlib.Path, sys.argv[2:6])
    os.environ.pop("DDP_TORCH", None)
    library = played.build(compiler, fake_device, scratch)
    tools = Toolchain(compiler, prefix, libdir, scratch, torch_folder())
    os.environ["DDP_TEST_DEVICE"] = "played:0"
    with_device = ["-DPLAYED", "-DDDP_EXPERIMENTAL", f"-I{played.TESTS}", "-Wl,--no-as-needed", library, fake_device,
                   f"-Wl,-rpath,{library.parent}:{fake_device.parent}"]
    for name in ("streams", "averaging"):
        program = tools.build(HERE / f"{name}.cc", *with_device)
        for ranks in (1, 2):
            tools.all_hold(ranks, program)


if __name__ == "__main__":
    main()
