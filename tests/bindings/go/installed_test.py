"""The trainer of docs/go.md, built as the page says, with the module of the installed tree.

    installed_test.py GO PREFIX LIBDIR
"""
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bindings"))
from installed_program import build_and_run  # noqa: E402

go, prefix, libdir = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
page = (ROOT / "docs/go.md").read_text()
assert "\n    go build minimal.go\n" in page
module = re.search(r"^```text\n(module .*?)^```$", page, re.M | re.S)[1].replace("PREFIX", str(prefix))
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "go.mod").write_text(module)
    shutil.copy(ROOT / "examples/go/minimal.go", folder)
    build_and_run(prefix, libdir, folder, [go, "build", "minimal.go"], "./minimal")
