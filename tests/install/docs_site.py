#!/usr/bin/env python3
"""Builds the documentation site, which must give no warning, and looks at it as a browser without a network does.

- Every public function, field and constant of the headers has a place in the reference, under its name.
- Every link inside the site leads to a page that exists, and to a place on it.
- No page loads anything from elsewhere, and the search knows the functions.

usage: docs_site.py ROOT FOLDER      FOLDER is for the site
"""
import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

sys.dont_write_bytecode = True
import docs

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "abi"))
import complete

PAGES = ("index", "README", "CHANGELOG", "CONTRIBUTING", "search", "docs/python", "docs/ddprun", "docs/performance", "docs/evaluation",
         "include/ddp/ddp.h", "include/ddp/context.hpp", "include/ddp_torch.hpp", "examples", "examples/c/mnist.c")
MISSING = re.compile(r"(?:Could not import extension|no theme named) '?(\w+)")
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
FROM_ELSEWHERE = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')\s]+")


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.add(value)
            elif (tag, name) in LOADED:
                self.loaded.add(value)


def names(include):
    """(header, name in the reference) of what the headers declare."""
    for header in sorted(include.glob("ddp/*.h")):
        for function in docs.DECLARATION.findall(header.read_text(encoding="utf-8")):
            yield f"include/ddp/{header.name}.html", f"c.{function}"
    for entry in (*complete.expected_layout(include), *complete.expected_values(include)):
        yield None, "c." + entry.split("(")[1].replace(", ", ".")


def dead(path, link, pages):
    """Whether a link of the page at `path` leads nowhere. Links to other sites are not followed."""
    scheme, host, target, _, anchor = urllib.parse.urlsplit(link)
    if scheme or host:
        return False
    target = (path.parent / urllib.parse.unquote(target)).resolve() if target else path
    return not target.is_file() or bool(anchor and target in pages and urllib.parse.unquote(anchor) not in pages[target].ids)


def examine(root, site):
    for name in PAGES:
        if not (site / f"{name}.html").is_file():
            yield f"there is no page {name}.html"
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    everywhere = set().union(*(page.ids for page in pages.values()))
    for header, name in names(root / "include"):
        if name not in (pages[site / header].ids if header else everywhere):
            yield f"the reference has no {name}"
    for path, page in pages.items():
        where = path.relative_to(site)
        yield from (f"{where}: the link {link} leads nowhere" for link in sorted(page.links) if dead(path, link, pages))
        yield from (f"{where}: loads {source}" for source in sorted(page.loaded) if re.match(r"(?:https?:)?//", source))
    for path in [*pages, *site.rglob("*.css")]:
        yield from (f"{path.relative_to(site)}: loads {found}" for found in FROM_ELSEWHERE.findall(path.read_text(encoding="utf-8")))
    if "ddp_grad_ready" not in (site / "searchindex.js").read_text(encoding="utf-8"):
        yield "the search does not know ddp_grad_ready"
    print(f"{len(pages)} pages, {len(everywhere)} places in them")


def main():
    root, folder = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    if not shutil.which("sphinx-build"):
        print("skipped: Sphinx is not installed (tools/setup docs)")
        return 0
    built = subprocess.run([root / "tools/docs", folder], capture_output=True, text=True)
    if missing := MISSING.search(built.stderr):
        print(f"skipped: {missing[1]} is not installed (tools/setup docs)")
        return 0
    if built.returncode:
        print(built.stdout, built.stderr, f"tools/docs ended with {built.returncode}", sep="\n")
        return 1
    faults = list(examine(root, folder / "html"))
    print(*faults, f"{len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
