#!/usr/bin/env python3
"""Says which tests were skipped, and why, from the results that ctest --output-junit writes.

usage: skips.py RESULTS...    Prints nothing if every test ran whole.

A test that is skipped whole says so in a line "skipped: REASON", or in its last line. A program of many tests may pass and skip some
of them: GoogleTest and unittest say so in its output.
"""
import collections
import re
import sys
import xml.etree.ElementTree

GOOGLETEST = re.compile(r": Skipped\n(.*)\n\[  SKIPPED \] (\S+)")
UNITTEST = re.compile(r"^(?:\[\d+\] )?(\w+) \([^\n]*\)(?:\n[^\n]*?)? \.\.\. skipped ['\"](.*)['\"]$", re.MULTILINE)
SHOWN = 8  # names for one reason
COUNT = re.compile(r"^(?:\[\d+\] )?OK \(skipped=(\d+)\)$", re.MULTILINE)


def reason(output):
    """The reason of a test that was skipped whole."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line.removeprefix("skipped: ") for line in lines if line.startswith("skipped:")]
    return (said or lines[-1:] or ["it does not say why"])[0]


def parts(name, output):
    """(reason, test) of each part that a test left out."""
    found = [(why.strip() or "it does not say why", f"{name}: {test}") for why, test in GOOGLETEST.findall(output)]
    found += [(why, f"{name}: {test}") for test, why in UNITTEST.findall(output)]
    counted = COUNT.search(output)
    if counted and not found:
        found.append(("it does not say why", f"{name}: {counted[1]} parts"))
    return found


def main():
    skipped, total, whole = collections.defaultdict(list), 0, 0
    for path in sys.argv[1:]:
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            total += 1
            output = case.findtext("system-out") or ""
            if case.find("skipped") is not None:
                whole += 1
                skipped[reason(output)].append(case.get("name"))
            else:
                for why, test in parts(case.get("name"), output):
                    skipped[why].append(test)
    if not skipped:
        return
    print(f"skipped: {whole} of {total} tests, and {sum(map(len, skipped.values())) - whole} parts of others")
    for why, names in sorted(skipped.items()):
        shown = list(dict.fromkeys(names))
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        print(f"  {why}: {', '.join(shown[:SHOWN])}{more}")


if __name__ == "__main__":
    main()
