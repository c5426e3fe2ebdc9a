"""Facts about the Go module that no test of it can state: each function of C that it calls has a name in Go (words.go), for messages,
which is a function of the module, and docs/go.md names the functions of C that it does not call.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
FREE = re.compile(r"ddp_(\w+_free|free|error_\w+|status_name|dtype_size|\w+_init_sized)$")  # no message names them


def main():
    every = (ROOT / "abi/ddp.symbols").read_text().split()
    sources = {path.name: path.read_text() for path in (ROOT / "bindings/go").glob("*.[gch]*")}
    text = "".join(source for name, source in sources.items() if name != "words.go")
    called = {name for name in re.findall(r"\b(ddp_\w+)\(", text) if name in every and not FREE.match(name)}
    words = dict(re.findall(r'^\t"(ddp_\w+)": +"([\w.]+)"', sources["words.go"], re.M))
    assert words.keys() == called, f"words.go: differs in {sorted(words.keys() ^ called)}"
    for word in words.values():
        kind, _, function = word.rpartition(".")
        pattern = rf"^func \(\w+ \*{kind}\) {function}\(" if kind else rf"^func {function}[(\[]"
        assert re.search(pattern, text, re.M), f"{word} is not in the module"
    page = (ROOT / "docs/go.md").read_text()
    told = set(re.findall(r"`(ddp_\w+)`", page[page.index("## Only in C"):]))
    expected = {name for name in every if name not in words and not FREE.match(name)}
    assert told == expected, f"docs/go.md, 'Only in C': not named {sorted(expected - told)}, too many {sorted(told - expected)}"
    print(f"{len(words)} words")


main()
