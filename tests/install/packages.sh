#!/bin/bash
# Builds the Debian packages, installs them into this system, and builds and runs a program with them. It is not part of
# tools/test, because it changes the system: run it on a machine that may be thrown away, for example
#
#   tools/try-fresh -- tests/install/packages.sh
set -euo pipefail
export CMAKE_GENERATOR=Ninja  # CMake's own choice is make, which need not be there
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ $(id -u) == 0 ]] || { echo "tests/install/packages.sh: installing packages needs root" >&2; exit 1; }

tools/setup
tools/build package
# cpack finds the dependencies of the binaries with dpkg-shlibdeps and file.
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends dpkg-dev file
rm -f build/package/*.deb
cpack --preset package
for package in build/package/*.deb; do
    dpkg --info "$package"
    dpkg --contents "$package"
done
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ./build/package/*.deb

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2046  # pkg-config prints several words
cc -std=c99 -Wall -Wextra -pedantic -Werror tests/install/consumer/main.c -o "$scratch/consumer" \
    $(pkg-config --cflags --libs ddp)
"$scratch/consumer"
# shellcheck disable=SC2046
cc -std=c99 tests/install/consumer/ranks.c -o "$scratch/ranks" $(pkg-config --cflags --libs ddp-static)
ddprun -n 2 "$scratch/ranks"
cmake -S tests/install/consumer -B "$scratch/build"
cmake --build "$scratch/build"
ddprun -n 2 "$scratch/build/consumer"
ddp-bench --help
ddprun -n 2 /usr/bin/python3 -c "import ddp; ddp.Group().barrier()"
version=$(pkg-config --modversion ddp)
artifact=/usr/share/maven-repo/org/libddp/libddp/$version/libddp-$version
grep -F "<version>$version</version>" "$artifact.pom"
for jar in /usr/share/java/libddp.jar "/usr/share/java/libddp-$version.jar" "$artifact.jar"; do
    ddprun -n 2 java -cp "$jar" examples/java/Minimal.java
done
if [[ -n $(type -P julia) ]]; then
    JULIA_LOAD_PATH=:/usr/share/julia/site ddprun -n 2 julia -e "using DDP; barrier(Group())"
    JULIA_LOAD_PATH=:/usr/share/julia/site julia -e 'using DDP
        try Group(; rank=0, world_size=2, init_method="tcp://127.0.0.1:1", timeout=1) catch error; error isa DDPError || rethrow() end'
fi

apt-get remove -q -y libddp0
modules=/usr/lib/python3/dist-packages/ddp
[[ ! -e $modules ]] || { echo "tests/install/packages.sh: removing python3-ddp left $(find "$modules")" >&2; exit 1; }
echo "packages: built, installed, used, removed"
