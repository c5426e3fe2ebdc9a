"""The trainer of docs/go.md, built as the page says, with the module of the installed tree.

    installed_test.py GO PREFIX LIBDIR
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GO, PREFIX, LIBDIR = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
ROOT = pathlib.Path(__file__).resolve().parents[3]


def main():
    page = (ROOT / "docs/go.md").read_text()
    module = re.search(r"^```text\n(module .*?)^```$", page, re.M | re.S)[1].replace("PREFIX", str(PREFIX))
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "go.mod").write_text(module)
        shutil.copy(ROOT / "examples/go/minimal.go", folder)
        environment = {**os.environ, "PKG_CONFIG_PATH": str(PREFIX / LIBDIR / "pkgconfig"), "LD_LIBRARY_PATH": str(PREFIX / LIBDIR)}
        assert "\n    go build minimal.go\n" in page
        subprocess.run([GO, "build", "minimal.go"], cwd=folder, env=environment, check=True, timeout=500)
        said = subprocess.run([PREFIX / "bin/ddprun", "-n", "2", "./minimal"], cwd=folder, env=environment, check=True, timeout=60,
                              stdout=subprocess.PIPE, text=True).stdout
    assert said.count(": y = 3.000 -2.000 x") == 2, said


main()
