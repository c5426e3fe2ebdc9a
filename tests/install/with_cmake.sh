#!/bin/bash
# Builds consumer/ with find_package(ddp) from an installed tree that was moved, and runs it, with each kind of the library.
# usage: with_cmake.sh CMAKE PREFIX SCRATCH
set -euo pipefail
export CMAKE_GENERATOR=Ninja  # CMake's own choice is make, which need not be there
cmake=$1 prefix=$2 scratch=$3
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/install/programs.sh
source "$here/programs.sh"

rm -rf "$scratch"
mkdir -p "$scratch"
cp -a "$prefix" "$scratch/moved tree"
cp -a "$here/consumer" "$scratch/consumer"
unset LD_LIBRARY_PATH CMAKE_PREFIX_PATH
for library in shared static; do
    build="$scratch/$library"
    "$cmake" -S "$scratch/consumer" -B "$build" -DCMAKE_PREFIX_PATH="$scratch/moved tree" -DLIBRARY=$library
    "$cmake" --build "$build"
    "$build/consumer"
    two_ranks "$scratch/moved tree/bin/ddprun" "$build/ranks"
done
needs_no_libddp "$scratch/static/ranks"

# refused SENTENCE ARGUMENTS...: configuring must end with the sentence.
refused() {
    local said
    rm -f "$scratch/static/CMakeCache.txt"
    said=$("$cmake" -S "$scratch/consumer" -B "$scratch/static" -DCMAKE_PREFIX_PATH="$scratch/moved tree" "${@:2}" 2>&1) &&
        complain "configured with ${*:2}: $said"
    # CMake breaks lines.
    said=$(tr -s ' \n' ' ' <<< "$said")
    [[ $said == *"$1"* ]] || complain "with ${*:2} CMake said '$said', not '$1'"
}
refused "it has no component 'mpi': there are shared and static" -DLIBRARY=mpi
refused "libddp.a needs libuv, which was not found: install it, or set DDP_UV_LIBRARY" \
    -DLIBRARY=static -DCMAKE_FIND_ROOT_PATH=/none -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY
