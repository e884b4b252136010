#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what the tests need, builds into build-test/ and runs them; ends with ctest's summary and its exit code.
#   tools/test.sh [--full] [--slice N] [--sanitize]
#     (nothing)     tier 1: what every change must pass
#     --full        all of them: tier 3 is what takes long and seldom fails
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
tier2=
while [ $# -gt 0 ]; do
    case $1 in
    --full) select=() tier2=yes ;;
    --slice)
        slice=${2:?--slice needs a number}
        [ "${CI:-}" != true ] || tier2=yes
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
need g++ g++
need clang-format clang-format
need strace strace
need qemu-x86_64 qemu-user
need git git
# Vulkan, and a driver of it that computes on the CPU.
need glslangValidator glslang-tools
need_lib vulkan libvulkan-dev
[ -e /usr/share/vulkan/icd.d ] || need_packages mesa-vulkan-drivers
[ -e /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json ] || need_packages vulkan-validationlayers
need_install

# The build for 64-bit Arm wants libraries of a second architecture. Adding one changes how apt sees the whole machine:
# only root asking for --full gets it, or a slice on a CI machine. Without them that test is skipped and says so.
arm64="libpcre2-dev:arm64 libhwloc-dev:arm64 libcjson-dev:arm64 libcmocka-dev:arm64"
if [ -n "$tier2" ] && [ "$(id -u)" -eq 0 ] && [ "$(uname -m)" = x86_64 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086 # the list is meant to be split
    if ! dpkg -s gcc-aarch64-linux-gnu $arm64 >/dev/null 2>&1; then
        say "installing: gcc-aarch64-linux-gnu $arm64"
        dpkg --add-architecture arm64
        (need_packages gcc-aarch64-linux-gnu $arm64 && need_install) || say "going on without the build for arm64"
    fi
fi

# Kernels for cards are compiled by a full run for all of them, by a slice on a CI machine for one: clang of version 19 for
# AMD; nvcc of the toolkit where that is installed, otherwise of what Python's packages have of it. Without them the tests
# go on and say so.
kernels=(-DBALLAST_CUDA_ARCHS=none -DBALLAST_HIP_ARCHS=none)
if [ -n "$tier2" ]; then
    (need clang-19 clang-19 && need ld.lld-19 lld-19 && need llvm-readelf-19 llvm-19 && need_install) ||
        say "going on without kernels for AMD cards"
    NVCC=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || echo "$PWD/build-cuda/nvidia/cu13/bin/nvcc")
    if [ ! -x "$NVCC" ]; then
        say "installing: nvcc, into build-cuda/"
        python3 -m pip install --quiet --no-deps --target build-cuda 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' \
            'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' >/dev/null 2>&1 ||
            say "going on without kernels for NVIDIA cards"
    fi
    export NVCC
fi
if [ ${#select[@]} -eq 0 ]; then
    kernels=('-DBALLAST_CUDA_ARCHS=86;120' '-DBALLAST_HIP_ARCHS=gfx1100;gfx90a')
    [ ! -x "$NVCC" ] || kernels+=("-DNVCC=$NVCC")
fi

if [ -z "${BALLAST_REFERENCE:-}" ] && [ -d ../shared/reference ]; then
    BALLAST_REFERENCE=$(cd ../shared/reference && pwd)
fi
if [ -n "${BALLAST_REFERENCE:-}" ]; then
    export BALLAST_REFERENCE
    echo "references beyond tests/data: yes"
else
    echo "references beyond tests/data: no (BALLAST_REFERENCE is not set); tests that want them are skipped"
fi

cmake -S . -B build-test -DCMAKE_BUILD_TYPE=Release -DBL_WERROR=ON -DBL_CONFIGS=ON "${kernels[@]}"
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
