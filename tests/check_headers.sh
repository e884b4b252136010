#!/bin/sh
# SPDX-License-Identifier: MIT
# Every header compiles alone, without warnings.
#   check_headers.sh ROOT BUILD [COMPILER]     BUILD holds version.h; exit 1 and the compiler's words per fault
set -eu
cd "$1"
build=$2
cc=${3:-cc}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
n=0
bad=0
for h in $(find core placement backends shaders tools tests -name '*.h' | sort); do
    flags="-std=c11 -D_GNU_SOURCE -DBL_X86=1 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Wundef -Werror"
    for dir in core placement backends backends/cpu shaders tools tests "${h%/*}" "$build"; do
        flags="$flags -iquote $dir"
    done
    case $h in
    */avx512*) flags="$flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mgfni -mfma -mf16c" ;;
    */arm/*)
        case $("$cc" -dumpmachine) in aarch64*) flags="$flags -march=armv8.2-a+dotprod" ;; *) continue ;; esac
        ;;
    */x86/*) flags="$flags -mavx2 -mfma -mf16c" ;;
    tests/*) flags="$flags $(pkg-config --cflags cmocka)" ;;
    esac
    printf '#include "%s"\nextern int bl_alone;\n' "${h##*/}" >"$scratch/alone.c"
    # shellcheck disable=SC2086 # flags are meant to be split
    "$cc" $flags -fsyntax-only "$scratch/alone.c" || {
        echo "$h: does not compile alone"
        bad=1
    }
    n=$((n + 1))
done
[ "$bad" = 0 ] && echo "$n headers compile alone"
exit "$bad"
