"""The adapters of trees, one rank in each language, train one model: each parameter has the same name in all of them.

    one_tree_test.py --rank COMMAND... --rank COMMAND... [--rank COMMAND...]        ddprun is $DDPRUN
"""
import itertools
import os
import pathlib
import shlex
import sys

from jobs import run_ranks

NAMES = "again.0.0 layers.0.bias layers.0.w layers.1.bias layers.1.w"
commands = [list(words) for split, words in itertools.groupby(sys.argv[1:], lambda word: word == "--rank") if not split]
with_jax = pathlib.Path(os.environ.get("DDP_FRAMEWORKS", "")) / "bin/python"
if with_jax.is_file():
    commands.append([str(with_jax), "-B", str(pathlib.Path(__file__).with_name("trees") / "tree.py"), "jax"])
assert len(commands) > 1, "one language is no mix"
cases = "".join(f"{rank}) exec {shlex.join(command)};; " for rank, command in enumerate(commands))
output = run_ranks(len(commands), "bash", "-c", f"case $RANK in {cases} esac", "one_tree", timeout=200)
print(output)
assert output.count(f"): {NAMES}\n") == len(commands), "parameters have other names"
