#!/bin/bash
# Compiles and runs consumer/main.c with what pkg-config says about an installed tree, and nothing else. The tree is
# moved first: it has to work wherever it lies.
# usage: with_pkg_config.sh CC PREFIX LIBDIR SCRATCH
set -euo pipefail
cc=$1 prefix=$2 libdir=$3 scratch=$4
here=$(cd "$(dirname "$0")" && pwd)

rm -rf "$scratch"
mkdir -p "$scratch"
cp -a "$prefix" "$scratch/moved tree"
prefix="$scratch/moved tree"
cp "$here/consumer/main.c" "$scratch/"
cd "$scratch"

export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
# eval, because pkg-config quotes its answer for a shell: the prefix may hold spaces.
eval "$cc -std=c99 -Wall -Wextra -pedantic -Werror main.c -o consumer $(pkg-config --cflags --libs ddp)"
LD_LIBRARY_PATH="$prefix/$libdir" ./consumer

if grep -Eq -- '-l(uv|gloo|crypto|hwy)' <<< "$(pkg-config --libs ddp)"; then
    echo "ddp.pc makes programs link libddp's own dependencies" >&2
    exit 1
fi
