#!/bin/bash
# Shared by the tests of this folder: checks of programs that were built against an installed tree.

complain() { echo "$*" >&2; exit 1; }

# two_ranks DDPRUN PROGRAM: two real ranks of it must find each other.
two_ranks() {
    local output
    output=$(timeout 60 "$1" -n 2 "$2" 2>&1) || complain "$2 on two ranks: $output"
    [[ $output == *"rank 0 of 2 over "*": sum 3"* && $output == *"rank 1 of 2 over "*": sum 3"* ]] ||
        complain "$2 on two ranks said: $output"
}

# needs_no_libddp PROGRAM: libddp is in it.
needs_no_libddp() {
    if objdump -p "$1" | grep -E 'NEEDED +libddp'; then complain "$1 needs the shared library"; fi
}
