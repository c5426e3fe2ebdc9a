#!/bin/bash
# Checks what lies in an installed tree, and that nothing in it remembers where it was built.
# usage: installed_files.sh PREFIX LIBDIR SONAME FORBIDDEN-FOLDER...
set -euo pipefail
prefix=$1 libdir=$2 soname=$3
shift 3

status=0
complain() { echo "$*" >&2; status=1; }
for file in "$libdir/libddp.so" "$libdir/libddp.a" "$libdir/$soname" "$libdir/pkgconfig/ddp.pc" "$libdir/pkgconfig/ddp-static.pc" "$libdir/pkgconfig/ddp-torch.pc" include/ddp_torch.hpp "$libdir/cmake/ddp/ddpConfig.cmake" \
    "$libdir/cmake/ddp/ddpConfigVersion.cmake" include/ddp/ddp.h bin/ddprun bin/ddp-why bin/ddp-bench share/bash-completion/completions/ddprun \
    share/man/man1/ddprun.1 share/man/man1/ddp-why.1 share/man/man1/ddp-bench.1 \
    libexec/ddp/report.py libexec/ddp/peers/compare.py libexec/ddp/peers/gloo_allreduce "$libdir/ddp/libddp-gloo.so" "$libdir/ddp/libddp-etcd.so" share/doc/ddp/LICENSE \
    share/ddp/rust/ddp/Cargo.toml share/ddp/rust/ddp-sys/src/bindings.rs share/ddp/go/go.mod share/ddp/go/bridge.c \
    share/doc/ddp/README.md share/doc/ddp/CHANGELOG.md share/doc/ddp/CONTRIBUTING.md; do
    [[ -e $prefix/$file ]] || complain "not installed: $file"
done
dynamic=$(objdump -p "$prefix/$libdir/libddp.so")
grep -Eq "SONAME +$soname\$" <<< "$dynamic" || complain "the SONAME is not $soname"
if grep -Eq 'RPATH|RUNPATH' <<< "$dynamic"; then complain "libddp.so has an RPATH"; fi
for folder in "$@"; do
    while IFS= read -r file; do
        complain "$file holds the path $folder"
    done < <(grep -rlF --include=*.pc --include=*.pom --include=*.cmake --include=*.h --include=*.hpp -- "$folder" "$prefix")
done
[[ $("$prefix/bin/ddprun" --help) == *ddprun* ]] || complain "the installed ddprun does not start"
while read -r option; do
    grep -qF -- "${option//-/\\-}" "$prefix/share/man/man1/ddprun.1" || complain "ddprun.1 does not know $option"
done < <("$prefix/bin/ddprun" --help | grep -oE '^ +--[a-z-]+' | tr -d ' ')
[[ $("$prefix/bin/ddp-why" --help) == *--report* ]] || complain "the installed ddp-why does not start"
[[ $("$prefix/bin/ddp-bench" peers --help) == *allreduce* ]] || complain "the installed ddp-bench does not find its scripts"
exit $status
