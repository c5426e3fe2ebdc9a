"""Players of devices are libraries over the fake device, of which each framework and version needs its own."""
import hashlib
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[2]


def built(source, version, compiler, fake_device, folder, *arguments):
    """The library of a source in this folder, made in `folder` once for each version of its framework."""
    source, fake_device = HERE / source, pathlib.Path(fake_device).resolve()
    key = hashlib.sha256(f"{version} {fake_device}".encode() + source.read_bytes()).hexdigest()[:16]
    library = pathlib.Path(folder).resolve() / f"{source.stem}-{key}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    subprocess.run([compiler, "-O1", "-fPIC", "-shared", "-Wall", f"-I{TESTS}", source, "-o", made, *arguments, fake_device,
                    f"-Wl,-rpath,{fake_device.parent}"], check=True, timeout=500)
    made.rename(library)
    return library
