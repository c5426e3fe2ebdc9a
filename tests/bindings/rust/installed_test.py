"""The trainer of docs/rust.md, built in a project as the page says, with the crates of the installed tree.

    installed_test.py CARGO PREFIX LIBDIR
"""
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bindings"))
from installed_program import build_and_run  # noqa: E402

cargo, prefix, libdir = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
page = (ROOT / "docs/rust.md").read_text()
assert "\n    cargo build --release\n" in page
manifest = re.search(r"^```toml\n(.*?)^```$", page, re.M | re.S)[1].replace("PREFIX", str(prefix))
name = re.search(r'^name = "(\w+)"$', manifest, re.M)[1]
with tempfile.TemporaryDirectory() as folder:
    project = pathlib.Path(folder)
    (project / "src").mkdir()
    (project / "Cargo.toml").write_text(manifest)
    shutil.copy(ROOT / "examples/rust/minimal.rs", project / "src/main.rs")
    build_and_run(prefix, libdir, project, [cargo, "build", "--release", "--offline"], f"target/release/{name}",
                  CARGO_TARGET_DIR=str(project / "target"))
