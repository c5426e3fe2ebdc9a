#!/bin/bash
# Builds consumer/ with find_package(ddp) from an installed tree that was moved, and runs it.
# usage: with_cmake.sh CMAKE PREFIX SCRATCH
set -euo pipefail
export CMAKE_GENERATOR=Ninja  # CMake's own choice is make, which need not be there
cmake=$1 prefix=$2 scratch=$3
here=$(cd "$(dirname "$0")" && pwd)

rm -rf "$scratch"
mkdir -p "$scratch"
cp -a "$prefix" "$scratch/moved tree"
cp -a "$here/consumer" "$scratch/consumer"
"$cmake" -S "$scratch/consumer" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/moved tree"
"$cmake" --build "$scratch/build"
"$scratch/build/consumer"
