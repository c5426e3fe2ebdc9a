#!/usr/bin/env python3
"""Checks the Markdown files: a code block under a line `<!-- PATH -->` is that file, and every link to a file of this tree
leads somewhere.

usage: readme.py ROOT [--fix]      --fix: copies the files into the blocks
"""
import pathlib
import re
import sys

EMBEDDED = re.compile(r"(<!-- (?P<path>\S+) -->\n```\w*\n)(?P<text>.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def examine(page, root, fix):
    text = page.read_text()
    for block in EMBEDDED.finditer(text):
        source = root / block["path"]
        if not source.exists():
            yield f"{page}: embeds {block['path']}, which does not exist"
        elif source.read_text() != block["text"]:
            if fix:
                text = text.replace(block.group(), block.group(1) + source.read_text())
                page.write_text(text)
            else:
                yield f"{page}: the block of {block['path']} differs from the file: tests/install/readme.py . --fix"
    for target in LINK.findall(text):
        if not (page.parent / target).exists():
            yield f"{page}: the link to {target} leads nowhere"


def main():
    root, fix = pathlib.Path(sys.argv[1]), "--fix" in sys.argv[2:]
    pages = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    faults = [fault for page in pages for fault in examine(page, root, fix)]
    print(*faults, f"{len(pages)} pages, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
