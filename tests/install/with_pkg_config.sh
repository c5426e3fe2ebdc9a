#!/bin/bash
# Compiles and runs programs with what pkg-config says about an installed tree, and nothing else: pkg-config sees no other .pc
# files, as on a system without the packages that libddp is built with. The tree is moved first: it has to work wherever it lies.
# usage: with_pkg_config.sh CC PYTHON PREFIX LIBDIR SCRATCH [MPI-COMMAND...]    MPI-COMMAND: runs a program on two ranks
set -euo pipefail
cc=$1 python=$2 prefix=$3 libdir=$4 scratch=$5
mpi=("${@:6}")
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/install/programs.sh
source "$here/programs.sh"

rm -rf "$scratch"
mkdir -p "$scratch"
cp -a "$prefix" "$scratch/moved tree"
prefix="$scratch/moved tree"
cp "$here"/consumer/*.c "$scratch/"
cd "$scratch"
unset PKG_CONFIG_PATH LD_LIBRARY_PATH DDP_MODULE_PATH
export PKG_CONFIG_LIBDIR="$prefix/$libdir/pkgconfig"

# build PROGRAM SOURCE FLAGS: eval, because pkg-config quotes its answer for a shell: the prefix may hold spaces.
build() { eval "$cc -std=c99 -Wall -Wextra -pedantic -Werror '$2' -o '$1' $3"; }
# words WORDS: how many, as the shell takes them.
words() { eval "set -- $1"; echo $#; }

# The shared library: one folder of headers, one of libraries, and the library.
cflags=$(pkg-config --cflags ddp)
libs=$(pkg-config --libs ddp)
[[ $(words "$cflags") == 1 && $cflags == -I* ]] || complain "pkg-config --cflags ddp is '$cflags', not one -I"
[[ $(words "$libs") == 2 && $libs == -L*" -lddp"* ]] || complain "pkg-config --libs ddp is '$libs', not -L and -lddp"
build consumer main.c "$cflags $libs"
LD_LIBRARY_PATH="$prefix/$libdir" ./consumer

# The examples that the installed README links to: in the tree, and built and run as they say.
"$python" -B "$here/readme.py" "$prefix/share/doc/ddp"
examples=$prefix/share/doc/ddp/examples
export LD_LIBRARY_PATH="$prefix/$libdir"
build minimal "$examples/c/minimal.c" "$cflags $libs"
[[ $(timeout 60 "$prefix/bin/ddprun" -n 2 ./minimal | grep -c ': y = 3.000 -2.000 x') == 2 ]] || complain "the example minimal.c"
(cd "$examples/c" && eval "$cc -O3 mnist.c mlp.c idx.c compare.c settings.c $cflags $libs -lz -lm -o '$scratch/mnist'" &&
    timeout 60 "$scratch/mnist" --epochs 1)
unset LD_LIBRARY_PATH

# The static one, of this tree and of one that has no other.
static_cflags=$(pkg-config --cflags ddp-static)
[[ $static_cflags == "$cflags" ]] || complain "pkg-config --cflags ddp-static is '$static_cflags'"
build static main.c "$(pkg-config --cflags --libs ddp-static)"
needs_no_libddp static
./static
mkdir archives
cp "$prefix/$libdir/libddp.a" archives/
build ranks ranks.c "-Larchives $(pkg-config --static --cflags --libs ddp | sed 's/-L[^-]*-lddp/-lddp/')"
needs_no_libddp ranks
two_ranks "$prefix/bin/ddprun" ./ranks

# Modules: beside the program that libddp is in, however the program is called; and where DDP_MODULE_PATH says.
mkdir -p bin/ddp wrong/ddp
printf 'void* ddp_backend_entry(void) { return 0; }\n' > none.c
cp ranks bin/
build bin/ddp/libddp-none.so none.c "-shared -fPIC"
cp bin/ddp/libddp-none.so wrong/ddp/libddp-wrong.so
for backend in none wrong; do
    said=$(cd wrong && PATH="$scratch/bin:$PATH" DDP_RANK=0 DDP_WORLD_SIZE=1 ranks $backend 2>&1) && complain "ranks $backend: $said"
    echo "$said"
    case $backend in
        none) expected="libddp-none.so returned NULL" ;;
        wrong) expected="$scratch/bin/ddp/libddp-wrong.so: not there (DDP_MODULE_PATH names more folders)" ;;
    esac
    [[ $said == *"$expected"* ]] || complain "a static program said '$said', not '$expected'"
done
said=$(DDP_STORE=etcd://127.0.0.1:9/x DDP_RANK=0 DDP_WORLD_SIZE=2 ./ranks 2>&1) && complain "a static program without the module etcd: $said"
[[ $said == *"'etcd://127.0.0.1:9/x' needs the module libddp-etcd.so: $scratch/ddp/libddp-etcd.so: not there"* &&
    $said == *"install the Debian package libddp-etcd, or build libddp with DDP_BUILD_ETCD=ON"* ]] ||
    complain "a static program without the module etcd said: $said"
modules=
eval "modules=$(pkg-config --variable=moduledir ddp)"
said=$(DDP_MODULE_PATH="$modules" timeout 60 "$prefix/bin/ddprun" -n 2 ./ranks gloo 2>&1) || complain "a static program over Gloo: $said"
[[ $said == *"over gloo: sum 3"* ]] || complain "a static program over Gloo said: $said"
if [[ ${#mpi[@]} -gt 0 ]]; then
    said=$(DDP_MODULE_PATH="$modules" timeout 60 "${mpi[@]}" ./ranks mpi 2>&1) || complain "a static program over MPI: $said"
    [[ $said == *"over mpi: sum 3"* ]] || complain "a static program over MPI said: $said"
fi
echo "pkg-config: shared and static, one rank and two"
