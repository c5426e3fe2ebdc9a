#!/usr/bin/env python3
"""Checks docs/architecture.md against the tree, so that the map shows the rooms and files of today.

- Every folder of lib/ that holds source files has a row in the section "Map", and every row names such a folder.
- The arrows of that section are those of layers.py.
- Each function in the table above the map is called or defined in a file of its row.
- Every file that the page names exists: as a path from the root, lib/, include/ or include/ddp/, or in a row of the map from the
  folder of that row.
- The glossary names at most 30 nouns, each once. It is closed: a new noun replaces an old one.
- The page has at most 5,000 words, without the bars of its tables.

The files that the pages of MORE_PAGES name exist too.

usage: map.py ROOT
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import layers

PAGE = "docs/architecture.md"
MORE_PAGES = ("docs/bindings.md", "docs/testing.md")
MOST_NOUNS, MOST_WORDS = 30, 5000
SOURCES = {".c", ".cc", ".cu", ".h"}
STARTS = ("", "lib", "include", "include/ddp")

SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ARROW = re.compile(r"^    (\w+) +-> (.+)$", re.MULTILINE)
ROOM = re.compile(r"^\| `(lib/[^`]+)` \|")
RULE = re.compile(r"\|[-| ]+$")
FILE = re.compile(r"(?<![\w./-])[\w./-]+\.(?:c|cc|cu|h|hpp|i|py|txt)\b")


def sections(text):
    """{title: (number of its line, body)} of each section."""
    parts = SECTION.split(text)
    line, found = parts[0].count("\n") + 1, {}
    for title, body in zip(parts[1::2], parts[2::2]):
        found[title] = (line, body)
        line += body.count("\n")
    return found


def rows(body):
    """The rows of the tables in a section, without their heads, as lists of cells."""
    inside = False
    for line in body.splitlines():
        if RULE.match(line):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def folders(root):
    """The folders of lib/ that hold source files."""
    return {path.parent.relative_to(root).as_posix() for path in root.glob("lib/*/**/*") if path.suffix in SOURCES}


def examine_rooms(root, line, body):
    named = [match[1] for match in map(ROOM.match, body.splitlines()) if match]
    for folder in sorted(folders(root) - set(named)):
        yield line, f"{folder} holds source files, and the map has no row for it"
    for folder in sorted(set(named) - folders(root)):
        yield line, f"the map has a row for {folder}, which holds no source files"
    for folder in sorted({folder for folder in named if named.count(folder) > 1}):
        yield line, f"the map has more than one row for {folder}"


def examine_arrows(line, body):
    arrows = {room: set(targets.split()) for room, targets in ARROW.findall(body)}
    rooms = {room: targets for room, targets in layers.ROOMS.items() if targets}
    for room in sorted(arrows.keys() | rooms.keys()):
        page, test = (" ".join(sorted(which.get(room, ()))) or "nothing" for which in (arrows, rooms))
        if page != test:
            yield line, f"the arrows of {room} lead to {page}; in layers.py to {test}"


def examine_files(root, text):
    for number, line in enumerate(text.splitlines(), 1):
        row = ROOM.match(line)
        starts = (*STARTS, row[1]) if row else STARTS
        for name in sorted(set(FILE.findall(line))):
            if not any((root / start / name).is_file() for start in starts):
                yield number, f"there is no file {name}"


def examine_glossary(line, body):
    nouns = [cells[0] for cells in rows(body)]
    if not 0 < len(nouns) <= MOST_NOUNS:
        yield line, f"the glossary has {len(nouns)} nouns, and may have 1 to {MOST_NOUNS}: a new noun replaces an old one"
    for noun in sorted({noun for noun in nouns if nouns.count(noun) > 1}):
        yield line, f"the glossary has '{noun}' more than once"


def examine_places(root, text):
    """The table "Where is", above the first section."""
    head = SECTION.split(text)[0]
    found = list(rows(head))
    if not found:
        yield 1, "there is no table that says where things are"
    for _, place in found:
        names = re.findall(r"`([^`]+)`", place)
        code = "".join((root / "lib" / name).read_text(encoding="utf-8") for name in names if (root / "lib" / name).is_file())
        for name in [name for name in names if not FILE.fullmatch(name)]:
            if not re.search(rf"\b{name}\(", code):
                line = text[:text.index(place)].count("\n") + 1
                yield line, f"no file of this row defines or calls {name}"


def words(text):
    return len([word for word in text.split() if word.strip("|-")])


def examine(root, text):
    if words(text) > MOST_WORDS:
        yield 1, f"the page has {words(text)} words, and may have {MOST_WORDS}: leave out what headers and code say"
    found = sections(text)
    for title in ("Map", "Glossary"):
        if title not in found:
            yield 1, f"there is no section '{title}'"
            return
    yield from examine_rooms(root, *found["Map"])
    yield from examine_arrows(*found["Map"])
    yield from examine_glossary(*found["Glossary"])
    yield from examine_files(root, text)
    yield from examine_places(root, text)


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / PAGE).read_text(encoding="utf-8")
    faults = list(examine(root, text))
    for line, fault in faults:
        print(f"{PAGE}:{line}: {fault}")
    for page in MORE_PAGES:
        for line, fault in examine_files(root, (root / page).read_text(encoding="utf-8")):
            print(f"{page}:{line}: {fault}")
            faults.append(fault)
    print(f"{len(folders(root))} rooms, {len(FILE.findall(text))} names of files, {words(text)} words, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
