#!/bin/bash
# Configures libddp with BUILD_SHARED_LIBS=OFF and another library folder, installs it below DESTDIR, and builds and runs programs
# with the tree. BUILD, a build of libddp with the settings that follow, has the objects.
# usage: static_tree.sh CMAKE CC PYTHON SOURCE BUILD DDPRUN SCRATCH [-DNAME=VALUE...]
set -euo pipefail
export CMAKE_GENERATOR=Ninja  # CMake's own choice is make, which need not be there
cmake=$1 cc=$2 python=$3 source=$4 build=$5 ddprun=$6 scratch=$7
settings=("${@:8}")
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/install/programs.sh
source "$here/programs.sh"

rm -rf "$scratch"
mkdir -p "$scratch"
"$cmake" -S "$source" -B "$scratch/build" -DBUILD_SHARED_LIBS=OFF -DDDP_BUILD_TOOLS=OFF -DDDP_BUILD_EXAMPLES=OFF \
    -DDDP_BUILD_{GLOO,ETCD,MPI,CUDA}=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_INSTALL_PREFIX=/opt/ddp -DCMAKE_INSTALL_LIBDIR=lib64 \
    "-DCMAKE_CXX_COMPILER_LAUNCHER=$python;-BS;$here/reuse_objects.py;$build/compile_commands.json" "${settings[@]}"
"$cmake" --build "$scratch/build"
DESTDIR="$scratch/stage" "$cmake" --install "$scratch/build"
[[ $(ls "$scratch/stage") == opt ]] || complain "installed outside the prefix: $(ls "$scratch/stage")"
prefix=$scratch/stage/opt/ddp
unset PKG_CONFIG_PATH LD_LIBRARY_PATH CMAKE_PREFIX_PATH
export PKG_CONFIG_LIBDIR=$prefix/lib64/pkgconfig

for flags in "$(pkg-config --cflags --libs ddp)" "$(pkg-config --static --cflags --libs ddp)" \
    "$(pkg-config --cflags --libs ddp-static)"; do
    # shellcheck disable=SC2086  # several words
    "$cc" -std=c99 "$here/consumer/ranks.c" -o "$scratch/ranks" $flags
    needs_no_libddp "$scratch/ranks"
done
two_ranks "$ddprun" "$scratch/ranks"

# shared: ddp::ddp, which is the static one here. Debian's CMake does not look into lib64 by itself.
for library in shared static; do
    "$cmake" -S "$here/consumer" -B "$scratch/$library" -Dddp_DIR="$prefix/lib64/cmake/ddp" -DLIBRARY=$library
    "$cmake" --build "$scratch/$library"
    needs_no_libddp "$scratch/$library/ranks"
    two_ranks "$ddprun" "$scratch/$library/ranks"
done

# A library folder with a whole path stays where it is.
"$cmake" "$scratch/build" -DCMAKE_INSTALL_LIBDIR="$scratch/elsewhere/lib" > /dev/null
[[ $(PKG_CONFIG_LIBDIR=$scratch/build pkg-config --variable=libdir ddp) == "$scratch/elsewhere/lib" ]] ||
    complain "ddp.pc with a whole path as library folder: $(cat "$scratch/build/ddp.pc")"
# Parts that load the shared library say that they need it.
for part in TESTS PYTHON; do
    said=$("$cmake" "$scratch/build" -DDDP_BUILD_$part=ON 2>&1) && complain "DDP_BUILD_$part=ON without the shared library"
    [[ $said == *"DDP_BUILD_$part needs the shared library"* ]] || complain "DDP_BUILD_$part=ON: $said"
    "$cmake" "$scratch/build" -DDDP_BUILD_$part=OFF > /dev/null
done
echo "static tree: three ways of pkg-config, two of CMake"
