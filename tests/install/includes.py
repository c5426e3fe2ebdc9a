#!/usr/bin/env python3
"""Checks that each file of lib/ includes the header of ours that declares what the file uses. The preset `release` compiles several files
as one, and so does not find it.

    includes.py ROOT

A header declares the types, functions, constants and macros that begin a line in it. A file may include it by another header. Only
headers that another file of the same folder includes matter: such a file may stand before this one. Members are not looked at.
"""
import functools
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|^\s*#\s*include[^\n]*', re.MULTILINE | re.DOTALL)
TYPE = re.compile(r"^(?:enum class|class|struct|union|enum) (?:alignas\(\w+\) )?(\w+)[^;({]*\{|^using (\w+) =", re.MULTILINE)
CONSTANT = re.compile(r"^(?:inline |extern )?(?:constexpr|const) [\w:<>]+ (\w+)[ ={;]|^#define (\w+)", re.MULTILINE)
FUNCTION = re.compile(r"^(?!return|using|template|namespace|else)(?:\[\[\w+\]\] )?[a-zA-Z_][\w:<>,*& ]*[ *&](?!alignas)(\w+)\(", re.MULTILINE)


class Tree:
    def __init__(self, root):
        self.folders = (root / "lib", root / "include")

    @functools.cache
    def code(self, path):
        return NOT_CODE.sub(" ", path.read_text(encoding="utf-8"))

    @functools.cache
    def included(self, path):
        """The headers of ours that this file includes itself."""
        found = (folder / name for name in INCLUDE.findall(path.read_text(encoding="utf-8")) for folder in self.folders)
        return [header for header in found if header.exists()]

    def reached(self, path):
        """This file and every header of ours that it sees."""
        seen, left = {path}, [path]
        while left:
            for header in self.included(left.pop()):
                if header not in seen:
                    seen.add(header)
                    left.append(header)
        return seen

    @functools.cache
    def declared(self, path):
        """({types and constants}, {functions}) of a file."""
        code = self.code(path)
        names = {name for pattern in (TYPE, CONSTANT) for match in pattern.finditer(code) for name in match.groups() if name}
        return names, set(FUNCTION.findall(code)) - names


def has_its_own(code, name, is_function):
    """Whether a file declares a name anywhere: as a member, a variable, or ahead of its definition."""
    patterns = [rf"\w {name}(?: =|[{{;[,)])"]
    if is_function:
        patterns.append(rf"^\s*(?!return |else |throw |case )[a-zA-Z_][\w:<>,*& ]*[ *&]{name}\(")
    else:
        patterns.append(rf"\b(?:class|struct|union|enum|using|typename) {name}\b")
    return any(re.search(pattern, code, re.MULTILINE) for pattern in patterns)


def faults_of(tree, path, seen_beside, headers):
    """headers: {name: (whether it is a function, the headers that declare it)}"""
    code = tree.code(path)
    reached = tree.reached(path)
    # A member of something is not what a header declares.
    used = set(re.findall(r"(?<![\w.:>~])(\w+)\b(?!\()", code)), set(re.findall(r"(?<![\w.:>~])(\w+)(?=\()", code))
    for name, (is_function, homes) in sorted(headers.items()):
        if name not in used[is_function] or not reached.isdisjoint(homes) or seen_beside.isdisjoint(homes):
            continue
        if not any(has_its_own(tree.code(file), name, is_function) for file in reached):
            yield f"{name} is declared in {' and '.join(str(home) for home in sorted(homes))}"


def main():
    tree = Tree(pathlib.Path(sys.argv[1]))
    headers, folders = {}, {}
    files = sorted(path for suffix in ("h", "cc") for path in tree.folders[0].rglob(f"*.{suffix}"))
    for path in files:
        folders.setdefault(path.parent, set()).update(tree.reached(path))
    for header in {header for seen in folders.values() for header in seen if header.suffix == ".h"}:
        for is_function, names in enumerate(tree.declared(header)):
            for name in names:
                headers.setdefault(name, (is_function, set()))[1].add(header)
    faults = 0
    for path in files:
        for fault in faults_of(tree, path, folders[path.parent], headers):
            faults += 1
            print(f"{path}: {fault}")
    print(f"{len(files)} files, {len(headers)} names, {faults} faults")
    return 1 if faults or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
