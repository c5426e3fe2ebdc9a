#!/usr/bin/env python3
"""Checks libddp as a part of another project (subproject/), by add_subdirectory with a shared library or FetchContent with a static one:

    subproject.py WAY CMAKE SOURCE BUILD DDPRUN SCRATCH [-DNAME=VALUE...]      WAY: add_subdirectory, FetchContent

The project must stay as it was: its variables, flags, tests, installation and names of targets. BUILD, a build of libddp with the
settings that follow, has the objects.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

WAY, CMAKE = sys.argv[1:3]
SOURCE, BUILD, DDPRUN, SCRATCH = map(pathlib.Path, sys.argv[3:7])
SETTINGS = sys.argv[7:]
HERE = pathlib.Path(__file__).resolve().parent
# Names that may be new: libddp's own, and those that CMake leaves behind when it looks for libraries and when libddp
# enables C++.
OURS = re.compile(r"ddp_|DDP_|libddp_|FETCHCONTENT_|PKG_CONFIG_|__pkg_config|pkgcfg_lib_DDP_|prefix_result$|Threads_|THREADS_|"
                  r"FIND_PACKAGE_MESSAGE|CMAKE_THREAD|CMAKE_HAVE_|CMAKE_USE_|CMAKE_MATCH_|CMAKE_CXX_|CMAKE_INSTALL_|_?CMAKE_.*CXX|_")
# Names that a project would mind all the same.
THEIRS = re.compile(r"CMAKE_INSTALL_(PREFIX|RPATH)|CMAKE_CXX_(STANDARD|EXTENSIONS|VISIBILITY|FLAGS$)")


def run(*command, **options):
    result = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
                            check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{command} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def check(good, complaint):
    if not good:
        sys.exit(f"{WAY}: {complaint}")


def configure(build, *settings):
    launcher = f"{sys.executable};-BS;{HERE / 'reuse_objects.py'};{BUILD / 'compile_commands.json'}"
    return run(CMAKE, "-G", "Ninja", "-S", SCRATCH / "outer", "-B", build, f"-DLIBDDP={SOURCE}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
               f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", *settings, *SETTINGS)


def main():
    shutil.rmtree(SCRATCH, ignore_errors=True)
    shutil.copytree(HERE / "subproject", SCRATCH / "outer")
    shutil.copy(SOURCE / "examples" / "c" / "minimal.c", SCRATCH / "outer")
    build = SCRATCH / "build"
    said = configure(build, *(["-DFETCH=ON", "-DBUILD_SHARED_LIBS=OFF"] if WAY == "FetchContent" else []))

    changed = re.findall(r"-- changed: (.*)", said)
    bad = [line for line in changed for name in [line.split()[1]]
           if line.startswith("property ") or THEIRS.match(name) or not OURS.match(name)]
    check(not bad, f"libddp changed the project's {', '.join(bad)}")
    targets = re.findall(r"-- target: (.*)", said)
    bad = [name for name in targets if not re.match(r"ddp(_|$)", name)]
    check(targets and not bad, f"libddp has the targets {', '.join(bad) or 'of nobody'}")
    cache = (build / "CMakeCache.txt").read_text()
    for pattern in (r"Python3?_\w*", r"MPI_\w*", r"SWIG_\w*", r"Java_\w*", r"JULIA_\w*", r"CUDA\w*", r"GTest_\w*", r"CLI11_\w*",
                    r"CPACK_\w*", r"BUILD_TESTING"):
        found = re.search(rf"^{pattern}:", cache, re.MULTILINE)
        check(not found, f"libddp looked for {found and found.group()}")
    check(not list(build.glob("CPack*")), "libddp made packages of the project")

    for entry in json.loads((build / "compile_commands.json").read_text()):
        inside = entry["file"].startswith(f"{SOURCE}/")
        flags = entry["command"].split()
        check("-Werror" not in flags, f"-Werror for {entry['file']}")
        if not inside:
            bad = [flag for flag in flags if re.match(r"-(W|std|f|D(?!NDEBUG))", flag)]
            check(not bad, f"libddp's flags {bad} for {entry['file']}")

    print(run(CMAKE, "--build", build, "--target", "minimal", "mnist"))
    tests = run("ctest", "-N", cwd=build)
    check("Total Tests: 1" in tests, f"the project has one test: {tests}")
    ranks = run(DDPRUN, "-n", 2, build / "minimal", env={**os.environ, "LD_LIBRARY_PATH": ""})
    check(ranks.count(": y = 3.000 -2.000 x") == 2, f"two ranks said {ranks}")
    needed = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", build / "minimal"))  # its other lines have the path of this folder
    check(any(name.startswith("libddp.") for name in needed) == (WAY != "FetchContent"), f"minimal needs {needed}")
    run(CMAKE, "--build", build)
    run(CMAKE, "--install", build, "--prefix", SCRATCH / "prefix")
    installed = [str(path) for path in (SCRATCH / "prefix").glob("**/*")]
    check(not installed, f"libddp installs {installed}")
    print(f"{WAY}: {len(targets)} targets of libddp, {len(changed)} variables that are its own")


main()
