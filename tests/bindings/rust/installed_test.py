"""The trainer of docs/rust.md, built in a project as the page says, with the crates of the installed tree.

    installed_test.py CARGO PREFIX LIBDIR
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CARGO, PREFIX, LIBDIR = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
ROOT = pathlib.Path(__file__).resolve().parents[3]


def main():
    page = (ROOT / "docs/rust.md").read_text()
    manifest = re.search(r"^```toml\n(.*?)^```$", page, re.M | re.S)[1].replace("PREFIX", str(PREFIX))
    with tempfile.TemporaryDirectory() as folder:
        project = pathlib.Path(folder)
        (project / "src").mkdir()
        (project / "Cargo.toml").write_text(manifest)
        shutil.copy(ROOT / "examples/rust/minimal.rs", project / "src/main.rs")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(PREFIX / LIBDIR / "pkgconfig"), "LD_LIBRARY_PATH": str(PREFIX / LIBDIR),
                       "CARGO_TARGET_DIR": str(project / "target")}
        assert "\n    cargo build --release\n" in page
        subprocess.run([CARGO, "build", "--release", "--offline"], cwd=project, env=environment, check=True, timeout=500)
        name = re.search(r'^name = "(\w+)"$', manifest, re.M)[1]
        said = subprocess.run([PREFIX / "bin/ddprun", "-n", "2", f"target/release/{name}"], cwd=project, env=environment, check=True,
                              timeout=60, stdout=subprocess.PIPE, text=True).stdout
    assert said.count(": y = 3.000 -2.000 x") == 2, said


main()
