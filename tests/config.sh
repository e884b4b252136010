#!/bin/bash
# SPDX-License-Identifier: MIT
# One more build of everything, with the tests that are worth running in it.
#   config.sh NAME ROOT BUILD_DIR
#     clang     clang, warnings are errors; unit tests and kernels
#     asan      gcc, address and undefined-behaviour sanitizers; every tier 1 test
#     tsan      gcc, thread sanitizer; whatever starts threads
#     fuzz      clang, libFuzzer with both sanitizers; each target for a while
#   exit 77 when the compiler is missing
set -euo pipefail
name=$1 root=$2 dir=$3

options=(-DCMAKE_BUILD_TYPE=Release -DBL_WERROR=ON)
select=(-L tier1)
case $name in
clang)
    options+=(-DCMAKE_C_COMPILER=clang)
    select=(-R '^(unit|kernels)')
    ;;
asan)
    options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DBL_SANITIZE='address,undefined')
    ;;
tsan)
    options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DBL_SANITIZE=thread)
    select=(-R '^unit\.(thread|engine|session|cpu_ops|program)')
    ;;
fuzz)
    options+=(-DCMAKE_C_COMPILER=clang -DBL_FUZZ=ON -DBL_SANITIZE='address,undefined')
    select=(-L fuzz)
    ;;
*)
    echo "config.sh: unknown configuration $name" >&2
    exit 2
    ;;
esac
for o in "${options[@]}"; do
    if [ "$o" = -DCMAKE_C_COMPILER=clang ] && ! command -v clang >/dev/null; then
        echo "skipped: no clang here"
        exit 77
    fi
done
cmake -S "$root" -B "$dir" "${options[@]}" >"$dir.configure.log" 2>&1 || {
    cat "$dir.configure.log"
    exit 1
}
cmake --build "$dir" -j "$(nproc)" -- --no-print-directory
cd "$dir"
ctest --output-on-failure --no-tests=error -j "$(nproc)" "${select[@]}"
