#!/usr/bin/env python3
"""Checks that retired names do not come back to lib/ and include/: in code, comments and names of files.

- No line and no path holds a name of RETIRED, but in the files where the rule allows it.
- The names of ONE_MEANING are so general that each new class wants them. At most one class of lib/ has each.

Each rule says what to use instead. Whoever renames something that many files knew adds a rule here.

usage: names.py ROOT
"""
import pathlib
import re
import sys
import typing

FOLDERS = ("lib", "include")
SOURCES = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp", ".i", ".txt"}


class Rule(typing.NamedTuple):
    pattern: str
    instead: str
    example: str  # that the pattern must find
    allowed: tuple = ()  # the rule does not apply to paths that begin with one of these


RETIRED = [
    Rule(r"\b(class|struct)\s+Transport\b(?!\s*;|::)", "the backend's own name, as in GlooTransport",
         "class Transport {", ("lib/comm/transport.h",)),
    Rule(r"\bTeam\b", "Threads for threads that cooperate (kernels/everywhere.h); a team is the ranks of one host",
         "template <class Team>", ("lib/backends/shm/", "lib/backends/hierarchical/")),
    Rule(r"BlockTeam|kThinTeam|thin_team|LIBDDP_TEAMWORK",
         "BlockThreads, kThinThreads, thin_matrix, LIBDDP_COOPERATIVE", '#include "kernels/thin_team.h"'),
    Rule(r"SideLane|side_lane|allreduce_over_lanes", "SideMesh, side_mesh, allreduce_over_meshes", "SideLane& side"),
    Rule(r"\bhost_store\b", "backends/common/keys.h", '#include "backends/gloo/host_store.h"'),
    Rule(r"DeviceLane|device_lane", "DeviceStreams, device_streams", "DeviceLane& lane"),
    Rule(r"\bLauncher\b", "LaunchQueue (core/launch_queue.h); a launcher is the program that starts the ranks",
         "Launcher launcher_;", ("lib/launch/",)),
    Rule(r"\bkAnnounced\b", "kClosing", "case Phase::kAnnounced:"),
    # NCCL's communicator has a timed mutex: a call may stay in NCCL until other ranks come, and an abort waits a bounded time for it.
    # A public header has none of libddp's own.
    Rule(r"std::(\w*mutex|condition_variable\w*|\w+_lock|lock_guard)\b", "Mutex, Lock and Condition (util/mutex.h), which clang checks",
         "std::lock_guard lock(mutex_);", ("lib/util/mutex.h", "lib/backends/nccl/communicator.cc", "include/ddp_torch.hpp")),
    Rule(r"\bCrew\b", "SiblingExecutors (comm/executor.h)", "std::shared_ptr<Crew> crew"),
    Rule(r"\blib/modules\b", "lib/backends/NAME, lib/device/cuda, lib/kernels/cuda", "// lib/modules/mpi makes it"),
]
ONE_MEANING = ("Place", "Slot", "Staging", "Lane", "Turn")

NAME = f"({'|'.join(ONE_MEANING)})"
DEFINITION = re.compile(rf"\b(?:class|struct)\s+{NAME}\b(?=\s*(?:$|final\b|\{{|:(?!:)))|\busing\s+{NAME}\s*=")


def files(root):
    """(path from the root, text) of each source file."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def retired_in(path, text):
    for rule in RETIRED:
        if path.startswith(rule.allowed):
            continue
        pattern = re.compile(rule.pattern)
        if found := pattern.search(path):
            yield path, 1, f"the name of the file holds the retired '{found[0]}'; use {rule.instead}"
        for number, line in enumerate(text.splitlines(), 1):
            if found := pattern.search(line):
                yield path, number, f"the name '{found[0]}' is retired; use {rule.instead}"


def definitions_in(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if found := DEFINITION.search(line):
            yield path, number, found[1] or found[2]


def faults_of(sources):
    defined = {name: [] for name in ONE_MEANING}
    for path, text in sources:
        yield from retired_in(path, text)
        for where, number, name in definitions_in(path, text):
            defined[name].append((where, number))
    for name, places in defined.items():
        for where, number in places if len(places) > 1 else ():
            yield where, number, f"{len(places)} classes are called {name}; name each by what it means"


def self_test():
    """Every rule finds its example and only that; two classes of one name are a fault, and one is none."""
    for rule in RETIRED:
        source = "lib/hooks/some.h"
        assert any(rule.instead in fault for _, _, fault in faults_of([(source, f"\n{rule.example}\n")])), rule.example
        for path in rule.allowed:
            assert not list(faults_of([(path, rule.example)])), rule.example
    assert list(faults_of([("lib/backends/gloo/side_lane.h", "")])), "a name of a file"
    fine = ("class Transport;", "struct Transport::Host {", "class GlooTransport {", "the team's ranks",
            "struct Place::Hidden {", "class Place;", "template <class Place>", "ChunkPlace place(table);",
            "int lane = 0;", "class DeviceStreams {")
    for line in fine:
        assert not list(faults_of([("lib/core/a.h", line), ("lib/core/b.h", line)])), line
    for line in ("class Place {", "    struct Place {", "struct Place final : Base {", "enum class Place : int {",
                 "using Place = int;", "class Place"):
        assert not list(faults_of([("lib/core/a.h", line)])), line
        assert len(list(faults_of([("lib/core/a.h", line), ("lib/core/b.h", line)]))) == 2, line


def main():
    self_test()
    sources = list(files(pathlib.Path(sys.argv[1])))
    faults = list(faults_of(sources))
    for path, number, fault in faults:
        print(f"{path}:{number}: {fault}")
    print(f"{len(sources)} files, {len(faults)} faults")
    return 1 if faults or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
