#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what the tests need, builds into build-test/ and runs them; ends with ctest's summary and its exit code.
#   tools/test.sh [--full] [--slice N] [--sanitize]
#     (nothing)     tier 1: what every change must pass
#     --full        tiers 1 and 2
#     --slice N     tier 1 and the tests of tier 2 that fall into slice N of 4
#     --sanitize    only the builds with sanitizers
#   BALLAST_REFERENCE=DIR   recorded references to test against beyond tests/data; without it, ../shared/reference
#                           beside this checkout when that is there
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/common/need.sh

SLICES=4
select=(-L tier1)
slice=
while [ $# -gt 0 ]; do
    case $1 in
    --full) select=() ;;
    --slice)
        slice=${2:?--slice needs a number}
        shift
        ;;
    --sanitize) select=(-R '^build\.(asan|tsan)$') ;;
    -h | --help)
        sed -n '3,10s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        say "tools/test.sh: unknown argument $1; see tools/test.sh --help"
        exit 2
        ;;
    esac
    shift
done

need_build_packages
need_lib cmocka libcmocka-dev
need python3 python3
need clang clang libclang-rt-dev
need clang-format clang-format
need strace strace
need qemu-x86_64 qemu-user
need git git
need_install

if [ -z "${BALLAST_REFERENCE:-}" ] && [ -d ../shared/reference ]; then
    BALLAST_REFERENCE=$(cd ../shared/reference && pwd)
fi
if [ -n "${BALLAST_REFERENCE:-}" ]; then
    export BALLAST_REFERENCE
    echo "references beyond tests/data: yes"
else
    echo "references beyond tests/data: no (BALLAST_REFERENCE is not set); tests that want them are skipped"
fi

cmake -S . -B build-test -DCMAKE_BUILD_TYPE=Release -DBL_WERROR=ON -DBL_CONFIGS=ON
cmake --build build-test -j "$(nproc)" -- --no-print-directory
cd build-test
numbers() {
    ctest -N -L "$1" | sed -n 's/^ *Test *#\([0-9]*\):.*/\1/p'
}
if [ -n "$slice" ]; then
    picked=$(numbers tier2 | awk -v n=$SLICES -v k="$slice" 'NR % n == k % n')
    select=(-I "0,0,0$( (numbers tier1; echo "$picked") | awk 'NF { printf ",%s", $1 }')")
    echo "slice $slice of $SLICES: $(echo "$picked" | wc -w) tests of tier 2"
fi
exec ctest --output-on-failure --no-tests=error -j 2 "${select[@]}"
