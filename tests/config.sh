#!/bin/bash
# SPDX-License-Identifier: MIT
# One more build of everything, with the tests that are worth running in it.
#   config.sh NAME ROOT BUILD_DIR
#     clang     clang, warnings are errors; unit tests, kernels, and libFuzzer on untrusted input
#     asan      gcc, address and undefined-behaviour sanitizers; every tier 1 test
#     tsan      gcc, thread sanitizer; whatever starts threads
#   exit 77 when its compiler is missing
set -euo pipefail
name=$1 root=$2 dir=$3

options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo)
case $name in
clang)
    if ! command -v clang >/dev/null; then
        echo "skipped: no clang here"
        exit 77
    fi
    options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DBL_WERROR=ON -DBL_FUZZ=ON)
    select=(-R '^(unit|kernels|fuzz)')
    ;;
asan)
    options+=(-DBL_SANITIZE='address,undefined')
    select=(-L tier1 -E '^(format|headers|layers|loc)$') # those look at sources only
    ;;
tsan)
    options+=(-DBL_SANITIZE=thread)
    select=(-R '^unit\.(thread|engine|cpu_ops|program)$')
    ;;
*)
    echo "config.sh: unknown configuration $name" >&2
    exit 2
    ;;
esac
cmake -S "$root" -B "$dir" "${options[@]}" >"$dir.configure.log" 2>&1 || {
    cat "$dir.configure.log"
    exit 1
}
cmake --build "$dir" -j "$(nproc)" -- --no-print-directory
cd "$dir"
ctest --output-on-failure --no-tests=error -j "$(nproc)" "${select[@]}"
