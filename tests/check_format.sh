#!/bin/sh
# SPDX-License-Identifier: MIT
# Sources are formatted by .clang-format. Headers are laid out by hand, as tables: for them and everything else that is
# text only width, tabs and trailing blanks are held.
#   check_format.sh [ROOT]     exit 1 and a line per fault; 77 when this clang-format is not the one of the rules
set -eu
cd "${1:-.}"
VERSION=14
WIDTH=132

sources() {
    find core placement backends shaders tools tests -name "$1" -print | sort
}

# shellcheck disable=SC2016 # awk's $
bad=$(sources '*.[ch]' | xargs awk -v width=$WIDTH '
    /\t/ { print FILENAME ":" FNR ": tab" }
    /[ ]$/ { print FILENAME ":" FNR ": blank at the end" }
    length($0) > width { print FILENAME ":" FNR ": longer than " width }')
if [ -n "$bad" ]; then
    echo "$bad"
    exit 1
fi
have=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$have" != "$VERSION" ]; then
    echo "skipped: clang-format $VERSION formats these sources, here is ${have:-none}"
    exit 77
fi
sources '*.c' | xargs clang-format --dry-run -Werror && echo "formatted"
