"""A program that is built and run with the installed tree, for the installed_test.py of compiled languages."""
import os
import subprocess


def build_and_run(prefix, libdir, folder, build, program, **environment):
    """Both ranks of the trainer that the page of the language shows must fit the line."""
    libraries = str(prefix / libdir)
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{libraries}/pkgconfig", "LD_LIBRARY_PATH": libraries, **environment}
    subprocess.run(build, cwd=folder, env=environment, check=True, timeout=500)
    said = subprocess.run([prefix / "bin/ddprun", "-n", "2", program], cwd=folder, env=environment, check=True, timeout=60,
                          stdout=subprocess.PIPE, text=True).stdout
    assert said.count(": y = 3.000 -2.000 x") == 2, said
