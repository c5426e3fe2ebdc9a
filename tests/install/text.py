#!/usr/bin/env python3
"""Checks that no text of libddp depends on the locale of the host program: neither the C++ locale nor that of C.

Such text reaches other ranks, the store and files. A program that groups digits or writes a decimal comma would then not
understand the others. Each rule says what to use instead.

usage: text.py ROOT
"""
import pathlib
import re
import sys
import typing

FOLDERS = ("lib", "include", "tools", "bindings")
SOURCES = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp", ".i"}


class Rule(typing.NamedTuple):
    pattern: str
    instead: str
    examples: tuple  # lines that the pattern must find
    allowed: tuple = ()  # the rule does not apply to paths that begin with one of these


RULES = [
    Rule(r"\b[io]?stringstream\b|\b[io]fstream\b|\bstd::fstream\b", "TextOut, TextIn, FileOut, FileIn or str() of util/text.h",
         ("std::ostringstream out;", "std::stringstream both;", "std::istringstream(text) >> number;", "std::ifstream file(path);",
          "std::ofstream(path) << text;", "std::fstream file;"), ("lib/util/text.h",)),
    # MPI's program for measurements is its own, and sets no locale.
    Rule(r"\b(strto(d|f|ld)|sto(d|f|ld)|atof|[fs]?scanf)\b", "std::from_chars or parse_real() of util/options.h",
         ("value = std::stod(text, &end);", "strtod(text, NULL)", "atof(text)", 'sscanf(text, "%lf", &value)'),
         ("tools/bench/peers/mpi_allreduce.c",)),
    Rule(r'"[^"]*%[-+ #0]*[\d*]*(\.[\d*]*)?[lL]?[aAeEfFgG](?![\w])[^"]*"', "str() of util/text.h, with std::fixed and std::setprecision",
         ('printf("%f", value)', 'snprintf(text, size, "took %.*f s", 3, value)', '"%-8.3lf"'),
         ("tools/bench/peers/mpi_allreduce.c",)),
    Rule(r"\b(setlocale|uselocale|newlocale)\b|\blocale::global\b|\bstd::locale\s*[({]", "nothing: the locale is the host program's",
         ('setlocale(LC_ALL, "");', "std::locale::global(other);", 'stream.imbue(std::locale(""));')),
    Rule(r"\bstd::(put|get)_(time|money)\b|\bstd::regex\b|%['I][dux]", "code that no locale changes",
         ('out << std::put_time(&parts, "%c");', "std::regex pattern;", "printf(\"%'d\", count);")),
]

FINE = ("out << std::put(1);", "std::to_string(rank)", 'printf("%d %s", rank, name)', "imbue(std::locale::classic())", "#include <locale>",
        "%extend ddp_tensor {", '"%.03ldZ "', '"100 % of"')


def faults_of(path, text):
    for rule in RULES:
        if path.startswith(rule.allowed):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith(("//", "#include")):
                continue
            if found := re.search(rule.pattern, line):
                yield number, f"'{found[0]}' depends on the locale of the host program; use {rule.instead}"


def self_test():
    for rule in RULES:
        for example in rule.examples:
            assert any(rule.instead in fault for _, fault in faults_of("lib/a.cc", example)), example
    for line in FINE:
        assert not list(faults_of("lib/a.cc", line)), line


def main():
    self_test()
    root = pathlib.Path(sys.argv[1])
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SOURCES and path.is_file()]
    faults = 0
    for path in paths:
        name = path.relative_to(root).as_posix()
        for number, fault in faults_of(name, path.read_text(encoding="utf-8")):
            print(f"{name}:{number}: {fault}")
            faults += 1
    print(f"{len(paths)} files, {faults} faults")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
