"""Facts about the crate `ddp` that no test of it can state.

- Programs in which a slice of libddp's memory would live too long do not compile: each file of refused/ names its error.
- The examples of its documentation compile, and its links lead somewhere.
- Each function of C that the crate calls has its name in Rust (words.rs), for messages, and docs/rust.md names those that it does not.

    crate_test.py RUSTC RUSTDOC TARGET LIBRARIES SCRATCH      TARGET: the folder in which Cargo has built the tests; LIBRARIES: libddp's
"""
import pathlib
import re
import subprocess
import sys

RUSTC, RUSTDOC = sys.argv[1:3]
TARGET, LIBRARIES, SCRATCH = map(pathlib.Path, sys.argv[3:6])
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FREE = re.compile(r"ddp_(\w+_free|free|error_\w+|status_name|dtype_size|\w+_init_sized)$")  # no message names them


def built(crate):
    return max(TARGET.glob(f"release/deps/lib{crate}-*.rlib"), key=lambda path: path.stat().st_mtime)


def compiled(path):
    return subprocess.run([RUSTC, "--edition", "2021", "--emit", "metadata", "--extern", f"ddp={built('ddp')}", "-L",
                           TARGET / "release/deps", "--out-dir", SCRATCH, path], stderr=subprocess.PIPE, text=True, timeout=100, check=False)


def check_documentation():
    source = ROOT / "bindings/rust/ddp/src/lib.rs"
    common = [RUSTDOC, "--edition", "2021", "--crate-name", "ddp", "-L", TARGET / "release/deps", "--extern", f"ddp_sys={built('ddp_sys')}"]
    subprocess.run([*common, "-D", "warnings", "--out-dir", SCRATCH / "pages", source], check=True, timeout=100)
    subprocess.run([*common, "--test", "--extern", f"ddp={built('ddp')}", "-L", f"native={LIBRARIES}", source], check=True, timeout=100)


def check_refused():
    SCRATCH.mkdir(parents=True, exist_ok=True)
    programs = sorted((HERE / "refused").glob("*.rs"))
    for path in programs:
        error = re.match(r"// (E\d+)", path.read_text())[1]
        done = compiled(path)
        assert done.returncode != 0 and f"error[{error}]" in done.stderr, f"{path.name}: no {error}\n{done.stderr}"
        # Without the line that is wrong it compiles.
        fine = SCRATCH / path.name
        fine.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "// refused" not in line))
        done = compiled(fine)
        assert done.returncode == 0, f"{path.name} without its wrong line:\n{done.stderr}"
    return len(programs)


def check_words():
    sources = {path.name: path.read_text() for path in (ROOT / "bindings/rust/ddp/src").glob("*.rs")}
    called = {name for name, text in sources.items() if name != "words.rs" for name in re.findall(r"sys::(ddp_\w+)\(", text)}
    words = re.findall(r'^    \("(ddp_\w+)", "([^"]+)"\)', sources["words.rs"], re.M)
    names = [name for name, _ in words]
    assert names == sorted(names), "words.rs is not sorted, and is searched by halves"
    missing = sorted(name for name in called - set(names) if not FREE.match(name))
    assert not missing, f"no word for {missing}"
    everything = "".join(sources.values())
    for name, word in words:
        kind, _, method = word.rpartition("::")
        assert " " in word or re.search(rf"\b(fn|struct) (?:r#)?{method}\b", everything), f"{word} is not in the crate"
    page = (ROOT / "docs/rust.md").read_text()
    every = (ROOT / "abi/ddp.symbols").read_text().split()
    told = set(re.findall(r"`(ddp_\w+)`", page[page.index("## Only in ddp-sys"):]))
    expected = {name for name in every if name not in names and not FREE.match(name)}
    assert told == expected, f"docs/rust.md, 'Only in ddp-sys': not named {sorted(expected - told)}, too many {sorted(told - expected)}"
    return len(words)


check_documentation()
print(f"{check_refused()} programs refused, {check_words()} words")
