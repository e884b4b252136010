#!/bin/bash
# SPDX-License-Identifier: MIT
# On a machine with cards of NVIDIA or AMD: builds with kernels for just these, tests them on the cards, measures, and
# leaves one report. Exit 0: every part passed; goals of speed that are missed are marked in it, no more.
#   tools/gpu-check.sh [option...]
#     -o FILE           the report, Markdown (default: gpu-report.md)
#     --minutes N       have done after so long; what there is no time for counts as failed (default: 12)
#     --build DIR       take this build of the source, with tests and with kernels for the cards (default: build in build-gpu/)
#     --models DIR      where made-up models of up to 18 GB are for a while (default: /dev/shm or /tmp, which has more room)
#     --only PART,...   of cards build ops models references splits speeds bench placements
#     --emulated        on the drivers that the tests emulate, of --build DIR, with tiny models: tests this script
#   BALLAST_REFERENCE=DIR   recorded references to test against beyond tests/data
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
. tools/common/need.sh

PARTS="cards build ops models references splits speeds bench placements"
declare -A LIMIT=([cards]=20 [build]=300 [ops]=120 [models]=90 [references]=150 [splits]=90 [speeds]=60 [bench]=240
                  [placements]=120)

# ---- what is here: lines of device, architecture and text ----

nvidia_cards() {
    local i=0 name cap driver memory mask=()
    command -v nvidia-smi >/dev/null || return 0
    [ -z "${CUDA_VISIBLE_DEVICES:-}" ] || mask=(-i "$CUDA_VISIBLE_DEVICES")
    nvidia-smi "${mask[@]}" --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader |
        while IFS=, read -r name cap driver memory; do
            echo "cuda$i ${cap//[ .]/} $name,$memory, driver$driver"
            i=$((i + 1))
        done
}

# gfx_target_version 90010 is gfx90a; processors have 0.
amd_cards() {
    local i=0 file version
    for file in /sys/class/kfd/kfd/topology/nodes/*/properties; do
        version=$(awk '$1 == "gfx_target_version" { print $2 }' "$file" 2>/dev/null || true)
        [ "${version:-0}" -gt 0 ] || continue
        printf 'hip%d gfx%d%x%x %s\n' $i $((version / 10000)) $((version / 100 % 100)) $((version % 100)) "$file"
        i=$((i + 1))
    done
}

# First cards of each architecture.
distinct() {
    awk '!seen[$2]++ { print $1 }' "$work/cards"
}
all_cards() {
    awk '{ print $1 }' "$work/cards" | paste -sd, -
}
archs() {
    awk -v which="$1" '$1 ~ "^" which && !seen[$2]++ { print $2 }' "$work/cards" | paste -sd';' -
}

# ---- parts: Markdown on standard output, a log on standard error ----

part_cards() {
    if [ -n "$emulated" ]; then
        printf 'cuda0 86 an emulated card\nhip0 gfx90a another, with warps of 64\n' >"$work/cards"
    else
        { nvidia_cards; amd_cards; } >"$work/cards"
    fi
    if [ ! -s "$work/cards" ]; then
        echo "No card: nvidia-smi names none, and neither does /sys/class/kfd."
        return 1
    fi
    sed 's/^/- /' "$work/cards"
    echo "- $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) processors," \
        "$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), $(uname -sr)"
    echo "- $(git describe --always --dirty 2>/dev/null || echo 'source without its history')"
}

find_nvcc() {
    PATH=$PATH:/usr/local/cuda/bin command -v nvcc || echo "$PWD/build-cuda/nvidia/cu13/bin/nvcc"
}

compilers() {
    local nvcc
    need_build_packages
    need_lib cmocka libcmocka-dev
    need g++ g++
    need python3 python3
    [ -z "$(archs hip)" ] || need clang-19 clang-19
    [ -z "$(archs hip)" ] || need ld.lld-19 lld-19
    need_install
    nvcc=$(find_nvcc)
    if [ -n "$(archs cuda)" ] && [ ! -x "$nvcc" ]; then
        say "installing: nvcc, into build-cuda/"
        python3 -m pip install --quiet --no-deps --target build-cuda 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' \
            'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' >&2
    fi
}

part_build() {
    local cuda hip
    cuda=$(archs cuda) hip=$(archs hip)
    if [ -z "$own_build" ]; then
        compilers
        cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release "-DBALLAST_CUDA_ARCHS=${cuda:-none}" \
            "-DBALLAST_HIP_ARCHS=${hip:-none}" "-DNVCC=$(find_nvcc)" >&2
        cmake --build "$build" -j "$(nproc)" --target ballast_cli test_simt_ops test_simt_models reference_check \
            card_peaks >&2
    fi
    echo "- $("$build/ballast" --version), kernels for: ${cuda:-no card of NVIDIA}, ${hip:-none of AMD}"
    [ -n "$emulated" ] || peak_kernels
}

# Of peak.cu, as those of the library are compiled; without a compiler those of before.
peak_kernels() {
    local arch flags=() nvcc
    nvcc=$(find_nvcc)
    mkdir -p "$peaks"
    for arch in $(archs cuda | tr ';' ' '); do
        flags+=(-gencode "arch=compute_$arch,code=sm_$arch")
    done
    if [ ${#flags[@]} -gt 0 ] && [ -x "$nvcc" ]; then
        "$nvcc" -fatbin -O3 -std=c++17 -I shaders -I . "${flags[@]}" tests/simt/peak.cu -o "$peaks/peak.fatbin" >&2
    fi
    for arch in $(archs hip | tr ';' ' '); do
        ! command -v clang-19 >/dev/null ||
            clang-19 -x hip --cuda-device-only --no-gpu-bundle-output "--offload-arch=$arch" -nogpuinc -nogpulib -O3 \
                -std=c++17 -I shaders -I . tests/simt/peak.cu -o "$peaks/peak.$arch.co" >&2
    done
}

# A command whose last lines tell what came of it.
told() {
    local title=$1 log rc=0
    shift
    log=$(mktemp "$work/told.XXXXXX")
    say "$*"
    "$@" >"$log" 2>&1 || rc=$?
    cat "$log" >&2
    if [ $rc -eq 0 ]; then
        echo "- $title: $(tail -n 1 "$log")"
    else
        printf -- '- **%s: exit %d**\n\n' "$title" $rc
        { grep -E 'FAIL|ERROR|too much|failed|error' "$log" || tail -n 10 "$log"; } | head -n 40 | sed 's/^/      /'
    fi
    return $rc
}

part_ops() {
    local card bad=0 some=()
    [ -z "$emulated" ] || some=('gl*')
    for card in $(distinct); do
        told "$card, float activations" "$build/tests/simt/test_simt_ops" "${card%%[0-9]*}" --card "${card##*[a-z]}" \
            "${some[@]}" || bad=1
        told "$card, rounded activations" "$build/tests/simt/test_simt_ops" "${card%%[0-9]*}" --card "${card##*[a-z]}" \
            --native "${some[@]}" || bad=1
    done
    return $bad
}

part_models() {
    local vendors=()
    mapfile -t vendors < <(sed 's/[0-9].*//' "$work/cards" | sort -u)
    if [ -n "$emulated" ]; then
        told "plans at random on both" "$build/tests/simt/test_simt_models" "${vendors[@]}"
        return
    fi
    local v bad=0
    for v in "${vendors[@]}"; do
        told "$v against the CPU" "$build/tests/simt/test_simt_models" "$v" || bad=1
    done
    [ ${#vendors[@]} -lt 2 ] || told "both against the CPU" "$build/tests/simt/test_simt_models" "${vendors[@]}" || bad=1
    return $bad
}

part_references() {
    local card bad=0 what=(tests/data/reference) names=() quick=()
    if [ -n "${BALLAST_REFERENCE:-}" ] && [ -z "$emulated" ]; then
        what=(--all) quick=(--quick)
    elif [ -n "$emulated" ]; then
        names=(llama-f32) quick=(--quick --mode exact)
    else
        mapfile -t names < <(cd tests/data/reference/cases && printf '%s\n' *.json | sed 's/\.json$//')
    fi
    for card in $(distinct); do
        told "all on $card" "$build/tests/e2e/reference_check" "${quick[@]}" --devices "$card" "${what[@]}" "${names[@]}" ||
            bad=1
    done
    told "at random over the CPU and $(all_cards)" "$build/tests/e2e/reference_check" "${quick[@]:---quick}" --devices "$(all_cards)" \
        --simulate 1 "${what[@]}" "${names[@]}" || bad=1
    return $bad
}

check() {
    python3 tools/common/gpu_check.py --ballast "$build/ballast" --devices "$(all_cards)" --machine "$work/machine.json" \
        --peaks "$work/peaks" --references tests/data/reference --models "$models" --seconds "$((limit - 2))" \
        ${emulated:+--small} "$1"
}
part_splits() { check splits; }
part_bench() { check bench; }
part_placements() { check placements; }

part_speeds() {
    local card devices
    devices=$(all_cards)
    [ -z "$emulated" ] || devices=${devices%%,*}
    "$build/ballast" probe ${emulated:+--quick} --devices "$devices" -o "$work/machine.json" >&2
    for card in $(awk '{ print $1 }' "$work/cards" | tr '\n' ' '); do
        "$build/tests/simt/card_peaks" "$card" "$peaks" >>"$work/peaks" || true # noticed by who reads them
    done
    check speeds
}

# ---- all of them ----

# What a part leaves is in $work/NAME.md and NAME.log, how it ended in NAME.rc.
run_part() {
    local name=$1 left=$((minutes * 60 - SECONDS)) limit rc=0 began=$SECONDS
    limit=$((LIMIT[$name] < left ? LIMIT[$name] : left))
    if [ $limit -lt 5 ]; then
        echo "**There was no time left.**" >"$work/$name.md"
        rc=124
    else
        say "$name: at most $limit s"
        export limit
        timeout -k 5 "$limit" tools/gpu-check.sh --part "$name" >"$work/$name.md" 2>"$work/$name.log" </dev/null || rc=$?
        [ $rc -lt 124 ] || printf '\n**Stopped after %d s.**\n' $((SECONDS - began)) >>"$work/$name.md"
    fi
    [ $rc -eq 0 ] || failed="$failed $name"
    echo "$name $rc $((SECONDS - began))" >>"$work/ended"
    say "$name: $([ $rc -eq 0 ] && echo passed || echo "failed ($rc)") after $((SECONDS - began)) s"
}

write_report() {
    echo "# Ballast on cards, $(date -u '+%Y-%m-%d %H:%M') UTC"
    printf '\n%s\n\n| part | | seconds |\n| --- | --- | --- |\n' "$([ -z "$failed" ] && echo 'Every part passed.' ||
        echo "Failed:$failed.")"
    awk '{ print "| " $1 " | " ($2 == 0 ? "passed" : "**failed, " $2 "**") " | " $3 " |" }' "$work/ended"
    while read -r name rc _; do
        printf '\n## %s\n\n' "$name"
        cat "$work/$name.md"
        if [ "$rc" -ne 0 ] && [ -s "$work/$name.log" ]; then
            printf '\nThe end of its log:\n\n'
            tail -n 30 "$work/$name.log" | cut -c1-200 | sed 's/^/    /'
        fi
    done <"$work/ended"
}

absolute() {
    (cd "$here" && realpath -m "$1")
}

roomier() {
    df --output=avail,target /dev/shm "${TMPDIR:-/tmp}" 2>/dev/null | sed 1d | sort -nr | awk 'NR == 1 { print $2 }'
}

if [ "${1:-}" = --part ]; then
    "part_$2"
    exit
fi
report=$here/gpu-report.md minutes=12 build=$PWD/build-gpu own_build="" models="" only=$PARTS emulated=""
while [ $# -gt 0 ]; do
    case $1 in
    -o) report=$(absolute "${2:?-o needs a file}") && shift ;;
    --minutes) minutes=${2:?--minutes needs a number} && shift ;;
    --build) build=$(absolute "${2:?--build needs a folder}") own_build=yes && shift ;;
    --models) models=$(absolute "${2:?--models needs a folder}") && shift ;;
    --only) only=${2:?--only needs names of parts} && shift ;;
    --emulated) emulated=yes ;;
    -h | --help)
        sed -n '3,13s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        say "tools/gpu-check.sh: unknown argument $1; see tools/gpu-check.sh --help"
        exit 2
        ;;
    esac
    shift
done
for name in ${only//,/ }; do
    [ -n "${LIMIT[$name]:-}" ] || { say "tools/gpu-check.sh: there is no part $name, only $PARTS" && exit 2; }
done
[ -n "$models" ] || { models=$(roomier) && [ "$models" != / ] || models=/tmp; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
peaks=$build/peaks
failed=""
if [ -n "$emulated" ]; then
    for name in $PARTS; do LIMIT[$name]=$((4 * LIMIT[$name])); done # processors are no cards
    simt=$build/tests/simt peaks=$build/tests/simt/images
    export BALLAST_CUDA_LIBRARY=$simt/libemu_cuda.so BALLAST_HIP_LIBRARY=$simt/libemu_hip64.so EMU=cards=1
    export BALLAST_CUDA_KERNELS=$peaks BALLAST_HIP_KERNELS=$peaks
    unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
fi
export CUDA_DEVICE_ORDER=PCI_BUS_ID work build own_build emulated models peaks
: >"$work/ended"
wanted=" cards build ${only//,/ } "
case $wanted in *" bench "* | *" placements "*) wanted="$wanted speeds " ;; esac
for name in $PARTS; do
    case $wanted in *" $name "*) run_part "$name" ;; esac
    case $failed in *cards* | *build*) break ;; esac # nothing can follow
done
write_report >"$report"
say "$report: $([ -z "$failed" ] && echo 'every part passed' || echo "failed:$failed")"
[ -z "$failed" ]
