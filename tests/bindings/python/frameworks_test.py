"""Installs packages into an environment of their own, for the tests that need them.

    frameworks_test.py FOLDER PACKAGE...       makes or completes FOLDER
"""
import pathlib
import subprocess
import sys
import venv

folder, packages = pathlib.Path(sys.argv[1]), sys.argv[2:]
python = folder / "bin" / "python"
if not python.exists():
    venv.create(folder, with_pip=True)
install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", *packages]
done = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=480, check=False)
if done.returncode != 0:
    print(f"skipped: pip cannot get {', '.join(packages)}\n{done.stdout}")
