#!/bin/bash
# SPDX-License-Identifier: MIT
# One more build of everything, with the tests that are worth running in it.
#   config.sh NAME ROOT BUILD_DIR
#     clang     clang, warnings are errors; unit tests, kernels, and libFuzzer on untrusted input
#     asan      gcc, address and undefined-behaviour sanitizers; every tier 1 test
#     tsan      gcc, thread sanitizer; whatever starts threads
#     aarch64   gcc for 64-bit Arm, run by qemu-user: kernels with every set of instructions, one small model per family,
#               every type, a prompt of 2,100 tokens
#   exit 77 when its compiler, or what it runs in, is missing
set -euo pipefail
name=$1 root=$2 dir=$3

options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo) targets=()
case $name in
clang)
    if ! command -v clang >/dev/null; then
        echo "skipped: no clang here"
        exit 77
    fi
    options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DBL_WERROR=ON -DBL_FUZZ=ON)
    select=(-R '^(unit|kernels|fuzz)' -E '^unit\.vulkan_ops\.')
    ;;
asan)
    options+=(-DBL_SANITIZE='address,undefined')
    # not what looks at sources only, nor one test more than once, be it with other kernels or all models in one; of
    # kernels whose threads are fibres, and of cards that run them, a selection
    select=(-L tier1 -E "^(format|headers|layers|loc|e2e\.(reference_full|scalar\..*)|unit\.vulkan_ops\..*|\
simt\.(simt_models|simt_fuse|simt_experts|simt_direct)\..*|simt\.(mixed|ops\.(cuda|cuda_native|hip64)|simt_(host|order)\.(old_cuda|hip)))\$")
    ;;
tsan)
    options+=(-DBL_SANITIZE=thread -DBL_VULKAN=OFF) # a software driver's own threads are not ours to check
    select=(-R '^(unit\.(thread|engine|cpu_ops|program)|simt\.(host_run|ops\.some_.*|some\..*|simt_(host|order)\.(cuda|hip64)))$')
    ;;
aarch64)
    for command in aarch64-linux-gnu-gcc qemu-aarch64; do
        if ! command -v $command >/dev/null; then
            echo "skipped: no $command here"
            exit 77
        fi
    done
    for lib in libpcre2-8 hwloc libcjson cmocka; do
        if ! PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig pkg-config --exists $lib; then
            echo "skipped: no $lib for arm64 here; tools/test.sh names the packages"
            exit 77
        fi
    done
    options=(-DCMAKE_BUILD_TYPE=Release -DBL_WERROR=ON -DBL_VULKAN=OFF
             -DCMAKE_TOOLCHAIN_FILE="$root/tests/aarch64.cmake")
    targets=(--target ballast_cli reference_check kernel_check test_dtype test_vocab_recorded test_deepseek4_long)
    select=(-R '^(aarch64\.|kernels\.|unit\.(dtype|vocab_recorded|deepseek4_long)$)')
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
cmake --build "$dir" "${targets[@]}" -j "$(nproc)" -- --no-print-directory
cd "$dir"
ctest --output-on-failure --no-tests=error -j "$(nproc)" "${select[@]}"
