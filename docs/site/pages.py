#!/usr/bin/env python3
"""Writes the source folder of the documentation site. Sphinx builds the site from it: tools/docs calls both.

The folder has the paths of the tree, so a link between two files means the same on the site as on a code host. It holds the pages in
Markdown as they are, a page for each public header (headers.py), and a page for each other file or folder that a page links to.
docs/README.md gives the navigation: a section is a group, and a link at the beginning of a row is an entry.

usage: pages.py ROOT FOLDER
"""
import pathlib
import posixpath
import re
import shutil
import sys

sys.dont_write_bytecode = True
import headers

LINK = re.compile(r"\[([^]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".c": "c", ".h": "c", ".cc": "cpp", ".hpp": "cpp", ".cu": "cuda", ".go": "go", ".java": "java", ".jl": "julia",
             ".py": "python", ".rs": "rust"}


def linked(page, root):
    """The paths from the root of the files and folders of the tree that a page links to."""
    for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        yield posixpath.normpath(page.parent.relative_to(root).joinpath(target).as_posix())


def navigation(root):
    """The navigation as Sphinx takes it, a table of contents for each group. An entry is a whole page, so links to a place on a page
    give none."""
    for section in re.split(r"^## ", (root / "docs/README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        entries = []
        for row in lines:
            if (link := LINK.match(row.removeprefix("| "))) and not link[3]:
                path = posixpath.normpath("docs/" + link[2]).removesuffix(".md")
                entries.append(f"{link[1]} <{'self' if path == 'README' else path}>")
        yield "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *entries, "```", ""])


def titled(path):
    return [":orphan:", ":nosearch:", "", path, "=" * len(path), ""]


def source_page(root, path):
    """A file with the colours of its language."""
    language = LANGUAGES.get(pathlib.Path(path).suffix, "text")
    text = (root / path).read_text(encoding="utf-8")
    return "\n".join([*titled(path), f".. code-block:: {language}", "   :force:", "", *("   " + line for line in text.splitlines()), ""])


def folder_page(path, files):
    return "\n".join([*titled(path), *(f"- :doc:`/{file}`" for file in files), ""])


def main():
    root, folder = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])

    def write(name, text):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    pages = [*root.glob("*.md"), *root.glob("docs/*.md")]
    for page in pages:
        write(page.relative_to(root), page.read_text(encoding="utf-8"))
    write("README.md", "".join([(root / "README.md").read_text(encoding="utf-8"), *navigation(root)]))
    codes = re.findall(r"^    DDP_ERROR_(\w+) =", (root / "include/ddp/status.h").read_text(encoding="utf-8"), re.MULTILINE)
    for header in sorted(root.glob("include/**/*.h*")):
        write(f"{header.relative_to(root)}.rst", headers.page(header, codes))

    files = {path for page in pages for path in linked(page, root) if not path.endswith(".md")}
    for path in [path for path in files if (root / path).is_dir()]:
        inside = sorted(file.relative_to(root).as_posix() for pattern in ("*", "*/*") for file in (root / path).glob(pattern)
                        if file.suffix in LANGUAGES and file.is_file())
        files.update(inside)
        write(path + ".rst", folder_page(path, inside))
    for path in files:
        if path.endswith(".svg"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, folder / path)
        elif (root / path).is_file() and not (folder / f"{path}.rst").exists():
            write(path + ".rst", source_page(root, path))


if __name__ == "__main__":
    main()
