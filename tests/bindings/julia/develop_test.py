"""The installed package, in a project of its own, with a fresh depot, without a registry: Pkg.develop takes it in, and it finds the
library of its own installation.

    develop_test.py PREFIX SCRATCH
"""
import os
import pathlib
import shutil
import subprocess
import sys

PREFIX, SCRATCH = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
USE = """
using DDP
group = Group()
numbers = [group.rank + 1.0]
allreduce!(group, numbers)
@assert numbers == [3.0]
@assert occursin("%s", read("/proc/self/maps", String))
@assert startswith(pathof(DDP), "%s")
"""
FAIL = """
using DDP
caught = try
    Group(; rank=0, world_size=2, init_method="tcp://127.0.0.1:1", timeout=1)
catch error
    error
end
@assert caught isa DDPError
@assert (caught.status, caught.rank) == (DDP.LibDDP.DDP_ERROR_TIMEOUT, 1)
"""


def run(*command, **environment):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250,
                          check=False, cwd=SCRATCH, env={**clean, **environment})
    if done.returncode != 0:
        sys.exit(done.stdout)
    return done.stdout


shutil.rmtree(SCRATCH, ignore_errors=True)
# A registry of no packages, so that Julia does not ask the network for the one of all.
(SCRATCH / "depot/registries/None").mkdir(parents=True)
(SCRATCH / "depot/registries/None/Registry.toml").write_text(
    'name = "None"\nuuid = "11111111-2222-4333-8444-555555555555"\nrepo = ""\n\n[packages]\n')
clean = {name: value for name, value in os.environ.items() if not name.startswith("JULIA") or name == "JULIA"}
clean.update(JULIA_DEPOT_PATH=f"{SCRATCH}/depot", JULIA_PROJECT=f"{SCRATCH}/project")
julia = (os.environ["JULIA"], "--startup-file=no")
package = PREFIX / "share/julia/site/DDP"
run(*julia, "-e", f'using Pkg; Pkg.offline(true); Pkg.develop(PackageSpec(path="{package}")); using DDP')
run(os.environ["DDPRUN"], "-n", 2, *julia, "-e", USE % (PREFIX / "lib", package))
# The same without a package manager: a folder of packages.
run(*julia, "-e", "using DDP; @assert Group(; rank=0, world_size=1).world_size == 1", JULIA_PROJECT="",
    JULIA_LOAD_PATH=f":{package.parent}")
# An error of the library is an exception, also where the loader finds the library by its name, as README.md sets it and as a package of
# the system has it.
for path in ("", PREFIX / "lib"):
    run(*julia, "-e", FAIL, JULIA_PROJECT="", JULIA_LOAD_PATH=f":{package.parent}", LD_LIBRARY_PATH=str(path))
failed = subprocess.run([*julia, "-e", "using DDP"], env={**clean, "DDP_LIBRARY": f"{SCRATCH}/libddp.so.0"}, text=True,
                        capture_output=True, timeout=250, check=False)
assert failed.returncode != 0 and "DDP_LIBRARY" in failed.stderr, failed.stderr
