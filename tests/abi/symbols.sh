#!/bin/bash
# Compares the symbols that libddp.so exports with the committed list.
# usage: symbols.sh LIBRARY LIST
#        symbols.sh LIBRARY          prints them, for tools/update-abi
set -euo pipefail

exported() {
    # Without the version's own symbol (type A), and without the "@@DDP_0" that the version script adds to each.
    nm --dynamic --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort
}

if [[ $# == 1 ]]; then
    exported "$1"
    exit
fi
if ! diff -u --label "$2 (committed)" --label "$1 (built)" "$2" <(exported "$1"); then
    echo
    echo "The exported symbols have changed. A symbol that is gone breaks programs; a new one is a promise."
    echo "If that is intended: tools/update-abi, and commit abi/."
    exit 1
fi
