#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether a predicted trace is what its plan predicts.

  trace.py TRACE PLAN            a line per step; an assertion that fails names the event
"""
import collections, json, sys

trace = json.load(open(sys.argv[1], encoding="utf-8"))
plan = json.load(open(sys.argv[2], encoding="utf-8"))
tracks = collections.defaultdict(list)
names = {}
for e in trace["traceEvents"]:
    if e["ph"] == "M":
        names[e["pid"], e["tid"]] = e["args"]["name"]
    else:
        tracks[e["pid"], e["tid"]].append(e)

for track, events in tracks.items():
    assert track in names, "a track without a name: %r" % (track,)
    end = 0
    for e in events:
        assert e["ts"] >= end - 1e-3, "%s: %r begins before %g" % (names[track], e, end)
        end = e["ts"] + e["dur"]

for pid, step in enumerate(("decode", "prefill"), 1):
    assert names[pid, 0].startswith(step + ": ")
    n = 1 if step == "decode" else plan["settings"]["ubatch_tokens"]
    ends = [e["ts"] + e["dur"] for (p, _), events in tracks.items() if p == pid for e in events]
    predicted = n * 1e6 / plan["derived"]["prediction"][step]["tok_per_s"]
    assert 0.98 <= max(ends) / predicted <= 1.0001, "%s ends at %g us, predicted %g" % (step, max(ends), predicted)
    of = lambda cat, key: sum(e["args"].get(key, 0) for (p, _), events in tracks.items() if p == pid
                              for e in events if e["cat"] == cat)
    assert of("copy", "bytes") + of("stream", "bytes") == of("link", "bytes"), "bytes of links are those moved"
    layers = {e["args"]["layer"] for (p, _), events in tracks.items() if p == pid for e in events if "layer" in e["args"]}
    streams = [names[t] for t in sorted(tracks) if t[0] == pid and t[1] < 1000]
    print("%s: %d layers on %s, %s" % (step, len(layers), " ".join(streams),
                                     "over links" if of("link", "bytes") else "nothing over links"))
