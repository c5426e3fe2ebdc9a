#!/usr/bin/env python3
"""Checks that no line of the public headers is too long, and that their comments state the four facts of status.h for every exported
function.

A comment states them if it has the words Threads, Blocks, Collective and Callbacks, each with a colon. They hold for
  - the declarations that follow in the same paragraph (paragraphs are separated by empty lines);
  - the declarations of all paragraphs that follow, if the comment is a paragraph of its own (a section comment), until the
    next section comment;
  - a declaration whose comment says "facts as NAME", if they hold for the function NAME.
"""
import pathlib
import re
import sys

COLUMNS, COLUMNS_OF_TABLES = 100, 120
TABLE = re.compile(r"^ \* {2,}\S")  # in a comment, indented: a table or an example
FACTS = ("Threads:", "Blocks:", "Collective:", "Callbacks:")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DECLARATION = re.compile(r"^DDP_API\s[^;]*?\b(ddp_\w+)\(", re.MULTILINE)
SAME_AS = re.compile(r"facts as (ddp_\w+)")


def referred(comment):
    """The function whose facts the comment refers to, or None; a line break may stand anywhere in the phrase."""
    match = SAME_AS.search(re.sub(r"\s*\n\s*\*?\s*", " ", comment))
    return match and match.group(1)


def states_facts(comment):
    return all(fact in comment for fact in FACTS)


def paragraphs(text):
    """(line number, text) of each paragraph; an empty line inside a comment does not end one."""
    held = COMMENT.sub(lambda match: re.sub(r"\n(?=\n)", "\n\f", match.group()), text)
    line = 1
    for part in re.split(r"(\n{2,})", held):
        if part.strip():
            yield line, part
        line += part.count("\n")


def examine(path, undocumented, documented):
    in_section = False
    for number, (start, paragraph) in enumerate(paragraphs(path.read_text())):
        if number == 0:
            continue  # the comment about the file, which may explain the facts themselves
        comments = list(COMMENT.finditer(paragraph))
        if comments and not COMMENT.sub("", paragraph).strip():
            in_section = states_facts(comments[-1].group())
            continue
        for declaration in DECLARATION.finditer(paragraph):
            name = declaration.group(1)
            before = [c.group() for c in comments if c.end() <= declaration.start()]
            by_reference = before and referred(before[-1]) in documented
            if in_section or by_reference or any(map(states_facts, before)):
                documented.add(name)
            else:
                line = start + paragraph[: declaration.start()].count("\n")
                undocumented.append(f"{path}:{line}: {name}")


def main():
    include = pathlib.Path(sys.argv[1])
    undocumented, documented = [], set()
    for path in sorted(include.glob("ddp/*.h")):
        examine(path, undocumented, documented)
    for line in undocumented:
        print(f"{line}: no comment states {' '.join(FACTS)}")
    print(f"{len(documented)} functions documented, {len(undocumented)} not")
    wide = [f"{path}:{number}" for path in sorted(include.rglob("*.h*"))
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > (COLUMNS_OF_TABLES if TABLE.match(line) else COLUMNS)]
    for place in wide:
        print(f"{place}: more than {COLUMNS} columns")
    return 1 if undocumented or wide or not documented else 0


if __name__ == "__main__":
    sys.exit(main())
