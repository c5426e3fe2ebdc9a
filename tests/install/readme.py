#!/usr/bin/env python3
"""Checks the Markdown files: a code block under a line `<!-- PATH -->` is that file, and every link to a file of this tree
leads somewhere. The first line of each page in docs says who needs it. docs/install.md names every option of CMake, docs/errors.md
has a section for every status, and docs/other-languages.md is the one page that says which languages mix.

usage: readme.py ROOT [--fix]      --fix: copies the files into the blocks
"""
import pathlib
import re
import sys

EMBEDDED = re.compile(r"(<!-- (?P<path>\S+) -->\n```\w*\n)(?P<text>.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)  # no link: Go has a[T](b)
STATUS = re.compile(r"^    DDP_ERROR_(\w+) = ", re.MULTILINE)
OPTION = re.compile(r"^\s*(?:option\((DDP_\w+)|set\((DDP_\w+)\s[^\n]*\sCACHE\s)", re.MULTILINE)
MIXED = re.compile(r"\branks\s+(?:of|in)\s+[^.]*\bmay\s+work\s+in\s+one\s+job", re.IGNORECASE)


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
    if page.parent.name == "docs" and not text.split("\n", 2)[2].startswith("You need this if "):
        yield f"{page}: the first line does not say who needs the page: 'You need this if ...'"
    for target in LINK.findall(CODE.sub("", text)):
        if not (page.parent / target).exists():
            yield f"{page}: the link to {target} leads nowhere"


def examine_facts(root, pages):
    """Facts that stand on one page only. An installed tree has no options."""
    options_page, mixed_page = root / "docs/install.md", root / "docs/other-languages.md"
    sources = [path for path in [root / "CMakeLists.txt", *root.glob("cmake/*.cmake")] if path.exists()]
    options = {match[1] or match[2] for path in sources for match in OPTION.finditer(path.read_text())}
    for option in sorted(options):
        if f"`{option}`" not in options_page.read_text():
            yield f"{options_page}: the option {option} is not in it"
    errors = root / "docs/errors.md"
    for status in STATUS.findall((root / "include/ddp/status.h").read_text()):
        if f"\n## {status}\n" not in errors.read_text():
            yield f"{errors}: no section is called {status}"
    for page in pages:
        found = MIXED.search(page.read_text())
        if bool(found) != (page == mixed_page):
            yield f"{page}: {'a list of languages of its own' if found else 'no list of the languages'} that mix"


def main():
    root, fix = pathlib.Path(sys.argv[1]), "--fix" in sys.argv[2:]
    pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("**/*.md"))]
    faults = [fault for page in pages for fault in examine(page, root, fix)]
    faults += examine_facts(root, pages)
    print(*faults, f"{len(pages)} pages, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
