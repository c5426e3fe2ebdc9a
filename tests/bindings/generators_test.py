"""The trainers of docs/other-languages.md, built as the page says, with the installed header and its pkg-config file.

    generators_test.py LANGUAGE PREFIX LIBDIR
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LANGUAGES = {
    "go": (["go", "gcc"], "golang-go", "minimal.go", "go build minimal.go"),
}


def main():
    language, prefix, libdir = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
    tools, packages, source, build = LANGUAGES[language]
    if any(shutil.which(tool) is None for tool in tools):
        print(f"skipped: {' or '.join(tools)} is not installed (Debian: {packages})")
        return
    root = pathlib.Path(__file__).resolve().parents[2]
    page = (root / "docs/other-languages.md").read_text()
    for line in filter(None, map(str.strip, build.splitlines())):
        assert f"\n    {line}\n" in page, f"the page does not say: {line}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / "examples" / language / source, folder)
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / libdir / "pkgconfig"), "LD_LIBRARY_PATH": str(prefix / libdir),
                       "GOCACHE": f"{folder}/cache"}
        subprocess.run(["sh", "-ec", build], cwd=folder, env=environment, check=True, timeout=150)
        said = subprocess.run([prefix / "bin/ddprun", "-n", "2", "./minimal"], cwd=folder, env=environment, check=True, timeout=60,
                              stdout=subprocess.PIPE, text=True).stdout
    assert said.count(": y = 3.000 -2.000 x") == 2, said


if __name__ == "__main__":
    main()
