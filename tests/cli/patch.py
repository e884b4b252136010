#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Damages a file on purpose: patch.py IN OUT OLD NEW [COUNT] replaces bytes by as many others; a \\xNN stands for a
byte. patch.py IN OUT --cut N keeps the first N bytes (negative: all but the last -N)."""
import sys

def unescape(s):
    return s.encode("latin-1").decode("unicode_escape").encode("latin-1")

src, dst, old, new = sys.argv[1:5]
data = open(src, "rb").read()
if old == "--cut":
    data = data[:int(new)]
else:
    a, b = unescape(old), unescape(new)
    count = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    if len(a) != len(b) or data.count(a) < count:
        sys.exit("patch.py: %r: wanted %d of equal length, found %d" % (old, count, data.count(a)))
    data = data.replace(a, b, count)
open(dst, "wb").write(data)
