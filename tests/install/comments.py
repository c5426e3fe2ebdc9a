#!/usr/bin/env python3
"""Checks that no line of a comment, and no documentation string, begins with a word that stands for a thing instead of naming
it: What, Who, Those, Of.

A reader who meets "What earlier steps left out" has to guess the subject. "The error feedback of earlier steps" names it.

usage: comments.py ROOT
"""
import pathlib
import re
import sys

FOLDERS = ("bindings", "cmake", "docs/site", "examples", "include", "lib", "tests", "tools")
SOURCES = {".c", ".cc", ".cmake", ".cu", ".cuh", ".go", ".h", ".hpp", ".i", ".java", ".jl", ".py", ".rs", ".sh", ".txt", ""}
FETCHED = ("examples/c/llm.c/source",)
BEGINNING = re.compile(r"(?:(?:^|\s)(?://+<?|#+|/\*+)\s+|^\s*\*\s+|^\s*\"\"\")(What|Who|Whoever|Whose|Those|That of|Of)\b")

WRONG = ("// What is left.", "    int left = 0;  // Of all.", "/* Whose it is. */", " * Those of the group.", "# Who waits.", "/** That of a part. */",
         "#   Whoever asks.", '    """What it does."""')
FINE = ("// whose bits", "// Offset of a row", "// Of_type", "// The rest, of what is left. Who waits", 'text = "What is left"',
        "WhatIsLeft();  // as above", "a * Of", "http://What")


def faults_in(text):
    for number, line in enumerate(text.splitlines(), 1):
        if found := BEGINNING.search(line):
            yield number, f"the comment begins with '{found[1]}'; name the thing that it is about"


def files(root):
    """(path from the root, text) of each source file."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in SOURCES or not path.is_file() or "__pycache__" in path.parts or name.startswith(FETCHED):
                continue
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                pass


def self_test():
    for line in WRONG:
        assert list(faults_in(line)), line
    for line in FINE:
        assert not list(faults_in(line)), line


def main():
    self_test()
    root = pathlib.Path(sys.argv[1])
    count = faults = 0
    for name, text in files(root):
        if name == "tests/install/comments.py":
            continue
        count += 1
        for number, fault in faults_in(text):
            print(f"{name}:{number}: {fault}")
            faults += 1
    print(f"{count} files, {faults} faults")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
