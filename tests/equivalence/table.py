#!/usr/bin/env python3
"""Checks docs/equivalence.md against the tests: every test that a row names exists in the file named before it, and every test
of tests/equivalence is in a row.

usage: table.py ROOT
"""
import pathlib
import re
import sys

SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w/]+\.(?:cc|py)")
TEST = re.compile(r"(\w+)\.(\w+)")
CPP_TEST = re.compile(r"^TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^class (\w+)|^    def (test_\w+)", re.MULTILINE)


def tests_in(path):
    """The tests of a source file, as "Suite.Name"."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cc":
        return {f"{suite}.{name}" for suite, name in CPP_TEST.findall(text)}
    tests, suite = set(), ""
    for new_suite, name in PYTHON_TEST.findall(text):
        suite = new_suite or suite
        if name:
            tests.add(f"{suite}.{name}")
    return tests


def rows_of(page):
    """(line number, name in PyTorch, text of the cell) of each row, without headings, of the tables of names in PyTorch."""
    in_table = False
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            in_table = False
        elif cells == ["PyTorch", "Here"]:
            in_table = True
        elif in_table and not line.startswith("|---"):
            yield number, cells[0], " ".join(cells[1:])


def check_row(folder, cell, named):
    """The faults of a row. Adds the tests that it names to `named`."""
    path = None
    tests = 0
    for span in SPAN.findall(cell):
        if FILE.fullmatch(span):
            path = folder / span
            if not path.is_file():
                yield f"there is no file {path}"
                return
        elif path and TEST.fullmatch(span):
            tests += 1
            named.add(span)
            if span not in tests_in(path):
                yield f"{path} has no test {span}"
    if path and not tests:
        yield "names a file and no test of it"
    if not path and not re.search(r"\w+.*\.$", cell):
        yield "names no test and gives no reason in a sentence"


def main():
    root = pathlib.Path(sys.argv[1])
    folder = root / "tests"
    page = root / "docs" / "equivalence.md"
    named, faults, rows = set(), [], 0
    for number, name, cell in rows_of(page.read_text(encoding="utf-8")):
        rows += 1
        faults += [f"{page}:{number}: {name}: {fault}" for fault in check_row(folder, cell, named)]
    for path in sorted((folder / "equivalence").glob("*.cc")):
        faults += [f"{path}: {test} is not in {page}" for test in sorted(tests_in(path) - named)]
    print("\n".join(faults + [f"{rows} rows, {len(named)} tests, {len(faults)} faults"]))
    return 1 if faults or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
