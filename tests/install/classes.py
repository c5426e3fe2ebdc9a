#!/usr/bin/env python3
"""Checks that classes stay small enough to be read as a whole, and that files do not include each other in a circle.

- A class has at most 30 functions and 15 members. Constants, types, friends, and functions that are deleted or defaulted do not count.
  Options, and what is written to a file, are lists of facts: structs without functions may have more members.
- A file is a header with the source of the same name. No file leads back to itself over the files that it includes.

NOT_YET and CIRCLES hold what was larger, or a circle, when this test came. No entry may grow, and no class may stay there when
it is small enough.
C++ is read as text, like in paths.py. The script tests itself first.

usage: classes.py ROOT
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import paths

MOST_FUNCTIONS, MOST_MEMBERS = 30, 15

# (functions, members) of each class that is larger.
NOT_YET = {
}
# Files that form a circle.
CIRCLES = [
]

CLASS = re.compile(r"(?<!enum )\b(?:class|struct)\s+(?:alignas\(\w+\)\s*)?((?:\w+::)*\w+)\b[^;{}()=]*\{")
INCLUDE = re.compile(r'^#include "([^"]+)\.h"', re.MULTILINE)
NO_STATEMENT = (",", "using ", "friend ", "static_assert", "enum ", "typedef ", "class ", "struct ", "union ")


def surface(body):
    """A class body without the bodies of its functions, classes and initializers."""
    depth, parentheses, kept = 0, 0, []
    for char in body:
        depth -= char == "}"
        if depth == 0:
            parentheses += (char == "(") - (char == ")")
            kept.append("};" if char == "}" and not parentheses else char)
        depth += char == "{"
    return re.sub(r"\b(?:public|private|protected)\s*:(?!:)", ";", "".join(kept))


def statements(body):
    for statement in surface(body).split(";"):
        statement = re.sub(r"^\s*template\s*<[^{}]*?>\s*(?=\w)", "", statement).strip()
        if statement.strip("{} ") and not statement.startswith(NO_STATEMENT):
            yield statement


def without_brackets(text):
    """Without template arguments and attributes: in both, parentheses and commas mean something else."""
    text = re.sub(r"DDP_GUARDED_BY\([^)]*\)|alignas\([^)]*\)|\[\[[^]]*\]\]|__attribute__\(\([^)]*\)\)", "", text)
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def size_of(body):
    """(functions, members) of a class."""
    functions = members = 0
    for statement in statements(body):
        if re.search(r"=\s*(?:delete|default)\s*$", statement):
            continue
        plain = without_brackets(statement)
        declared = re.split(r"[={]", plain)[0]
        if "operator" in plain or "(" in declared:
            functions += 1
        elif not re.match(r"(?:static|constexpr|inline)\b", declared):
            members += re.sub(r"\([^()]*\)", "", plain).count(",") + 1
    return functions, members


def classes_in(code):
    """(name, functions, members) of each class that is defined here."""
    for match in CLASS.finditer(code):
        brace = match.end() - 1
        yield (match[1], *size_of(code[brace + 1 : paths.end_of(code, brace)]))


def circles_in(included):
    """The circles of a graph: sorted lists of the files that lead back to themselves. included: of each file those it includes."""
    number, lowest, stack, found = {}, {}, [], []

    def visit(file):
        number[file] = lowest[file] = len(number)
        stack.append(file)
        for other in included.get(file, ()):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[file] = min(lowest[file], lowest[other])
        if lowest[file] == number[file]:
            circle = stack[stack.index(file):]
            del stack[stack.index(file):]
            if len(circle) > 1:
                found.append(sorted(circle))

    for file in sorted(included):
        if file not in number:
            visit(file)
    return sorted(found)


def faults_of(sizes, circles):
    """sizes: {(file, class): (functions, members)}."""
    for (file, name), (functions, members) in sorted(sizes.items()):
        most_functions, most_members = NOT_YET.get(name, (MOST_FUNCTIONS, MOST_MEMBERS))
        if functions > most_functions:
            yield f"{file}: {name} has {functions} functions, and may have {most_functions}"
        if members > most_members and functions:
            yield f"{file}: {name} has {members} members, and may have {most_members}"
    for name in NOT_YET:
        now = [size for (_, other), size in sizes.items() if other == name]
        if all(size[0] <= MOST_FUNCTIONS and size[1] <= MOST_MEMBERS for size in now):
            yield f"{name} is small enough now: take it out of NOT_YET"
    for circle in circles:
        if not any(set(circle) <= set(known) for known in CIRCLES):
            yield f"a circle of files: {' '.join(circle)}"


SOURCE = paths.code_of("""
class Car final : public Thing {
public:
    explicit Car(int wheels = 4, State state = {}) : wheels_(wheels), seats_{1}, state_{state} {}
    Car(const Car&) = delete;
    template <class T>
    void drive(T where, std::function<void(int)> how) { if (fast()) { hurry(); } }
    bool operator==(const Car& other) const = default;
    int wheels() const { return wheels_; }
private:
    enum class State { kNew, kOld };
    struct Seat {
        int row = 0, place = 0;
        std::function<void(int, int)> shout;
    };
    friend class Garage;
    static constexpr int kMost = 4;
    using Seats = std::vector<Seat>;
    const int wheels_;
    std::map<std::string, std::pair<int, int>> seats_{};
    std::atomic<State> state_{State::kNew};
    State former_ DDP_GUARDED_BY(mutex_) = State::kNew, next_ = State::kOld;
};
""")


def self_test():
    found = list(classes_in(SOURCE))
    assert found == [("Car", 3, 5), ("Seat", 0, 3)], found
    assert circles_in({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles_in({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert any("31 functions" in fault for fault in faults_of({("a.h", "A"): (31, 1)}, CIRCLES))
    assert any("16 members" in fault for fault in faults_of({("a.h", "A"): (1, 16)}, CIRCLES))
    assert not any("a.h" in fault for fault in faults_of({("a.h", "A"): (0, 16)}, CIRCLES))
    assert any("a b" in fault for fault in faults_of({}, [*CIRCLES, ["a", "b"]]))


def main():
    self_test()
    lib = pathlib.Path(sys.argv[1]) / "lib"
    sizes, included = {}, {}
    for path in sorted(lib.rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu"):
            continue
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(lib).as_posix()
        for owner, functions, members in classes_in(paths.code_of(text)):
            sizes[name, owner] = functions, members
        file = name.rsplit(".", 1)[0]
        others = {other for other in INCLUDE.findall(text) if other != file and (lib / f"{other}.h").is_file()}
        included.setdefault(file, set()).update(others)
    faults = list(faults_of(sizes, circles_in(included)))
    for fault in faults:
        print(fault)
    (file, name), size = max(sizes.items(), key=lambda item: item[1][0])
    print(f"{len(sizes)} classes, the largest with {size[0]} functions ({name} in {file}); {len(faults)} faults")
    return 1 if faults or not sizes else 0


if __name__ == "__main__":
    sys.exit(main())
