"""Installs the small frameworks into an environment of their own, for the tests that need them.

    frameworks_test.py FOLDER       makes or completes FOLDER
"""
import pathlib
import subprocess
import sys
import venv

folder = pathlib.Path(sys.argv[1])
python = folder / "bin" / "python"
if not python.exists():
    venv.create(folder, with_pip=True)
install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "jax", "optax", "flax", "tinygrad"]
done = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, check=False)
if done.returncode != 0:
    print(f"skipped: pip cannot get JAX, optax, Flax and tinygrad\n{done.stdout}")
