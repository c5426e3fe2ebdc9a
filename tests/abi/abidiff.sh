#!/bin/bash
# Compares the stable tier of libddp.so, as its debugging information tells it, with the committed baseline. No suppressions: a suppression
# that hides one harmless change hides the next harmful one.
# usage: abidiff.sh LIBRARY INCLUDE BASELINE STABLE
set -euo pipefail
library=$1 include=$2 baseline=$3 stable=$4

# Without debugging information abidiff sees symbols only and would find every struct unchanged.
sections=$(readelf -S --wide "$library")
if [[ $sections != *.debug_info* ]]; then
    echo "$library has no debugging information; cmake/DdpDebugInfo.cmake is to see to it" >&2
    exit 1
fi
# A function whose type is not in the baseline is compared by its name only.
if unseen=$(LC_ALL=C comm -13 <(grep -Eo "<function-decl name='ddp_\w+" "$baseline" | cut -d "'" -f 2 | LC_ALL=C sort) "$stable" |
    grep .); then
    printf 'no type in %s: %s\n' "$baseline" "${unseen//$'\n'/, }" >&2
    exit 1
fi
built=$(mktemp)
trap 'rm -f "$built"' EXIT
python3 -B "$(dirname "${BASH_SOURCE[0]}")/stable_abi.py" "$library" "$include" > "$built"
if ! abidiff "$baseline" "$built"; then
    echo
    echo "The stable ABI has changed. Fields are only ever appended to option structs, and values are never reused (docs/abi.md)."
    echo "If that is intended: tools/update-abi, and commit abi/."
    exit 1
fi
