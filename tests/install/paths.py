#!/usr/bin/env python3
"""Checks the diagrams of docs/architecture.md against the sources, so that the paths show the functions of today.

- "The path of a gradient", "The path of an error", "Devices" and "The wire": every function is defined in the file of its line. A line
  without a file is in the file of its caller. Words between functions are prose: a name with `::` in it is a function.
- "The path of a gradient": every line names one function, and the body of its caller calls it. The path has at most 25 calls in
  at most 10 files. A file is a header with the source of the same name.

C++ is read as text: comments and strings are left out, and a body ends with its brace. The script tests itself first.

usage: paths.py ROOT
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import map as page

GRADIENT = "The path of a gradient"
OTHERS = ("The path of an error", "Devices", "The wire")
MOST_CALLS, MOST_FILES = 25, 10

LINE = re.compile(r"    ( *)(\S+(?: \S+)*)(?:  +([\w./-]+\.(?:c|cc|cu|h))(?: .*)?|  .*)?$")
NAME = re.compile(r"[A-Za-z_]\w*(?:::\w+)*$")
NOISE = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
AFTER_PARAMETERS = re.compile(r"(?:\s|\b(?:const|noexcept|override|final|try)\b)*")
INITIALIZER = re.compile(r"\s*[:,]\s*\w+\s*(?=[({])")


def code_of(text):
    """C++ without comments, strings and characters."""
    return NOISE.sub(" ", text)


def end_of(code, start):
    """Where the bracket at `start` is closed."""
    opening = code[start]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] == opening) - (code[at] == closing)
        if depth == 0:
            return at
    return len(code)


def scopes(code, owner):
    """The bodies of the classes and namespaces of this name."""
    for match in re.finditer(rf"\b(?:class|struct|namespace)\s+(?:\w+::)*{owner}\b[^;{{}}()]*\{{", code):
        yield match.end() - 1, end_of(code, match.end() - 1)


def bodies(code, function):
    """The bodies of the functions of this name: of all of them, where the name says no class."""
    *owners, name = function.split("::")
    inside = list(scopes(code, owners[-1])) if owners else []
    for match in re.finditer(rf"(?<![\w.>~])((?:\w+::)*){name}\s*\(", code):
        brace = brace_after(code, end_of(code, match.end() - 1))
        if brace is None:
            continue
        written = match[1].split("::")[:-1]
        known = written[-1:] == owners[-1:] or (not written and any(a < match.start() < b for a, b in inside))
        if not owners or known:
            yield code[brace : end_of(code, brace)]


def brace_after(code, close):
    """Where the body begins after the parameters that end at `close`, or None: then this is no definition."""
    at = AFTER_PARAMETERS.match(code, close + 1).end()
    while member := INITIALIZER.match(code, at):
        at = end_of(code, member.end()) + 1
    while code[at : at + 1].isspace():
        at += 1
    return at if code[at : at + 1] == "{" else None


def calls(body, function):
    return re.search(rf"\b{function.split('::')[-1]}\s*(?:<[^<>;{{}}]*>\s*)?\(", body)


def functions_in(words):
    """The names of functions in the first column of a line."""
    names = [word.rstrip(",") for word in words.split()]
    prose = any(not word.endswith(",") for word in words.split()[:-1])
    return [name for name in names if NAME.match(name) and (not prose or "::" in name)]


def lines_of(section):
    """(number, depth, functions, file or "") of each line of the diagrams in a section that names a function."""
    first, body = section
    for number, line in enumerate(body.splitlines(), first):
        match = LINE.match(line)
        if not match or line[4:].lstrip().startswith("|"):
            continue
        depth, words, file = len(match[1]) // 2, match[2], match[3] or ""
        found = functions_in(words)
        if found and (depth or file):
            yield number, depth, found, file


def examine(section, read, strict):
    """(faults, calls, files) of a section. read: the code of a file, or None. strict: as for the path of a gradient."""
    faults, count, files, callers = [], 0, set(), []
    for number, depth, functions, file in lines_of(section):
        del callers[depth:]
        file = file or (callers[-1][1] if callers else "")
        callers += [callers[-1] if callers else (functions[0], file)] * (depth - len(callers))
        caller = callers[-1] if callers else None
        callers.append((functions[0], file))
        count += len(functions)
        files.add(file.rsplit(".", 1)[0])
        code = read(file)
        if code is None:
            faults.append((number, f"there is no file {file} for {functions[0]}"))
            continue
        for function in functions:
            if not any(True for _ in bodies(code, function)):
                faults.append((number, f"{file} does not define {function}"))
        if not strict:
            continue
        if len(functions) > 1:
            faults.append((number, "one function a line"))
        caller_code = caller and read(caller[1])
        if caller_code and not any(calls(body, functions[0]) for body in bodies(caller_code, caller[0])):
            faults.append((number, f"{caller[0]} does not call {functions[0]}"))
    if strict and count > MOST_CALLS:
        faults.append((section[0], f"the path has {count} calls, and may have {MOST_CALLS}"))
    if strict and len(files) > MOST_FILES:
        faults.append((section[0], f"the path is in {len(files)} files, and may be in {MOST_FILES}"))
    return faults, count, len(files)


SOURCE = {
    "a.cc": code_of("""
        void Car::start(int key) noexcept { // calls brake()
            turn(key, "brake()");
            at(wheel, [&](auto& w) { w.template roll<int>(1); });
        }
        void Car::turn(int) const { if (ready()) { engine_->ignite(); } }
        void Boat::sink() { bail(); }
    """),
    "b.h": code_of("class Engine final : public Part {\n  Engine() : cold_(true), parts_{1} {}\n  void ignite() { spark(); }\n};\nnamespace lib::cpu {\nint spark() { return 1; }\n}"),
}
RIGHT = """
    when the driver turns the key
    Car::start                a.cc   says so
      turn                           the key
        Engine::ignite        b.h
          cpu::spark          b.h
    Car::start returns
    Engine                    b.h a constructor
"""
WRONG = {
    "does not define Car::stop": RIGHT.replace("Car::start   ", "Car::stop    "),
    "does not define Engine::spark": RIGHT.replace("cpu::spark", "Engine::spark"),
    "does not define Car::ignite": RIGHT.replace("Engine::ignite        b.h", "Car::ignite           b.h"),
    "does not define Car::sink": RIGHT + "    Car::sink  a.cc\n",
    "there is no file c.h": RIGHT.replace("b.h", "c.h", 1),
    "Car::start does not call cpu::spark": RIGHT + "    Car::start  a.cc\n      cpu::spark  b.h\n",
    "Car::start does not call sink": RIGHT + "    Car::start  a.cc\n      sink\n",
    "does not define brake": RIGHT + "    Car::start  a.cc\n      brake\n",
    "one function a line": RIGHT.replace("      turn   ", "      turn, start   "),
    "the path has 50 calls": RIGHT * 10,
}


def self_test():
    """The faults of this script itself."""
    faults, count, files = examine((1, RIGHT), SOURCE.get, True)
    if (faults, count, files) != ([], 5, 2):
        yield f"the right diagram has {count} calls in {files} files and these faults: {faults}"
    for expected, diagram in WRONG.items():
        found = [fault for _, fault in examine((1, diagram), SOURCE.get, True)[0]]
        if not any(expected in fault for fault in found):
            yield f"a wrong diagram should give '{expected}', and gives {found}"
    if len(functions_in("Monitor::report, agree_on")) != 2 or functions_in("Car::start catches") != ["Car::start"]:
        yield "names are not told from prose"


def main():
    for fault in self_test():
        sys.exit(f"paths.py: {fault}")
    root = pathlib.Path(sys.argv[1])
    texts = {}

    def read(file):
        if file not in texts:
            path = root / "lib" / file
            texts[file] = code_of(path.read_text(encoding="utf-8")) if path.is_file() else None
        return texts[file]

    sections = page.sections((root / page.PAGE).read_text(encoding="utf-8"))
    faults = []
    for title in (GRADIENT, *OTHERS):
        if title not in sections:
            sys.exit(f"{page.PAGE}: there is no section '{title}'")
        found, count, files = examine(sections[title], read, title == GRADIENT)
        faults += found
        if not count:
            faults.append((sections[title][0], f"the section '{title}' has no diagram"))
        print(f"{title}: {count} calls in {files} files")
    for line, fault in faults:
        print(f"{page.PAGE}:{line}: {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
