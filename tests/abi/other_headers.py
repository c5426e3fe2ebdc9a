#!/usr/bin/env python3
"""Runs a program that was compiled with older or newer headers with this library, under AddressSanitizer.

In the older headers every struct with struct_size lacks its last fields, in the newer ones it has more. The headers are made from
those of this version, so a new struct is covered as soon as it is there: consumer.c must say how a program uses it.

usage: other_headers.py COMPILER INCLUDE LIBRARY FOLDER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRUCT = re.compile(r"typedef struct (ddp_\w+) \{\n( *size_t struct_size;.*?)\n\} \1;", re.DOTALL)
ALIGNMENT = 8
# Three fields of 8 bytes, so that the struct also crosses a multiple of 16.
LATER = "    uint64_t later[3];"


def first_cut(struct):
    """The last field that begins at a multiple of the struct's alignment: without it, nothing of a later field is left in padding."""
    offsets = re.findall(rf"^FIELD\({struct}, (\w+), (\d+)\);", (HERE / "layout.c").read_text(), re.MULTILINE)
    return [name for name, at in offsets if int(at) % ALIGNMENT == 0][-1]


def older(match):
    struct, body = match.groups()
    name = first_cut(struct)
    statements = body.split(";")
    cut = next(i for i, each in enumerate(statements) if re.search(rf"\b{name}\b(?:\[\w+\])?$|\(\*{name}\)\(", each))
    return f"typedef struct {struct} {{\n{';'.join(statements[:cut])};\n}} {struct};"


def newer(match):
    return f"typedef struct {match[1]} {{\n{match[2]}\n{LATER}\n}} {match[1]};"


def same(match):
    return match[0]


def make_headers(include, folder, change):
    """Copies the headers, with every struct changed. Returns its names, and those that have a function for the defaults."""
    structs, texts = [], []
    (folder / "ddp").mkdir(parents=True)
    for header in sorted(include.glob("ddp/*.h")):
        text = COMMENT.sub("", header.read_text())
        structs += [match[1] for match in STRUCT.finditer(text)]
        texts.append(text)
        (folder / "ddp" / header.name).write_text(STRUCT.sub(change, text))
    initialised = [each for each in structs if f"void {each}_init({each}* " in "".join(texts)]
    lines = [f"INIT({each})" for each in initialised] + [f"USE({each})" for each in structs]
    (folder / "structs.inc").write_text("\n".join(lines) + "\n")
    return structs


def run(compiler, library, out, version):
    folder = out / version
    subprocess.run([compiler, "-fsanitize=address", "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-I", folder, f"-D{version.upper()}",
                    HERE / "consumer.c", library, f"-Wl,-rpath,{pathlib.Path(library).parent}", "-o", folder / "consumer"],
                   check=True)  # yapf: disable
    others = ("DDP_", "OMPI_", "PMI_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environment.update(ASAN_OPTIONS="detect_leaks=0:" + os.environ.get("ASAN_OPTIONS", ""), TMPDIR=str(folder))
    return subprocess.run([folder / "consumer"], env=environment, timeout=90).returncode


def main():
    compiler, include, library, out = sys.argv[1:]
    out = pathlib.Path(out)
    shutil.rmtree(out, ignore_errors=True)
    failed = []
    for change in (same, older, newer):
        structs = make_headers(pathlib.Path(include), out / change.__name__, change)
        print(f"{len(structs)} structs, {change.__name__} headers:", flush=True)
        if not structs or run(compiler, library, out, change.__name__) != 0:
            failed.append(change.__name__)
    if failed:
        print(f"failed with headers: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
