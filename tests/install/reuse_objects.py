#!/usr/bin/env python3
"""A compiler launcher that takes objects from a build of libddp instead of compiling the same files in the same way again.

    reuse_objects.py COMPILE_COMMANDS.JSON COMPILER ARGUMENTS...

Warnings, debugging information and whether common headers were compiled before may differ. A file of that build that is to be
compiled in any other way is an error: then the code of libddp would depend on who builds it. Other files are compiled. CMake's files
of several sources (CMAKE_UNITY_BUILD) are the same where they include the same sources.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import sys

WITH_VALUE = {"-o", "-MT", "-MF", "-MQ", "-c"}
# -fno-ipa-icf keeps functions apart for abidiff; they do the same.
NO_MATTER = ("-W", "-g", "-MD", "-fdebug-prefix-map", "-fno-ipa-icf")


def parse(arguments):
    """(what determines the object, {option: value})"""
    rest, values = [], {}
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            values[word] = next(words)
        elif word == "-include":
            header = next(words)
            if not header.endswith("/cmake_pch.hxx"):
                rest += [word, header]
        elif not word.startswith(NO_MATTER):
            rest.append(word)
    return rest, values


def sources_of(file):
    """The names of files that are compiled with this file."""
    if "/Unity/unity_" not in file:
        return [file]
    return re.findall(r'^#include "(.*)"$', pathlib.Path(file).read_text(), re.MULTILINE)


def main():
    database, compiler, *arguments = sys.argv[1:]
    wanted, values = parse(arguments)
    source = values.get("-c")
    if not source:
        os.execvp(compiler, [compiler, *arguments])
    sources = sources_of(source)
    entries = [(entry, sources_of(entry["file"])) for entry in json.loads(pathlib.Path(database).read_text())]
    entries = [(entry, there) for entry, there in entries if not set(there).isdisjoint(sources)]
    if not entries:
        os.execvp(compiler, [compiler, *arguments])
    candidates = [entry for entry, there in entries if there == sources]
    for entry in candidates:
        words = shlex.split(entry["command"])
        ways, there = parse(words[words.index(compiler) + 1:])
        if ways == wanted:
            shutil.copyfile(pathlib.Path(entry["directory"]) / there["-o"], values["-o"])
            pathlib.Path(values["-MF"]).write_text(f"{values['-MT']}: {source}\n")
            return 0
        print(f"{source} was compiled with {shlex.join(ways)}", file=sys.stderr)
    print(f"{source} is to be compiled with {shlex.join(wanted)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
