#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How decoding bears company: alone, with another program computing on every core, with twice as
many threads as cores.

usage: busy.py BALLAST MODEL [--tokens N] [--rounds N] [--threads N] [--also BALLAST]

Runs take turns, so that what else changes on the machine meets all alike; medians are compared. A
machine that is busy already makes the numbers worthless, so this is no test of ctest's: run it by
hand on an idle one. The exit code says whether both marks were met.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

BUSY_MARK = 0.40   # of the speed alone, with one more thread computing on each core
TWICE_MARK = 0.50  # with twice as many threads as cores
SPIN = "while True: pass"


def cores():
    """One processor of every core that this process may use."""
    seen = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            with open(path, encoding="ascii") as f:
                seen.setdefault(f.read(), cpu)
        except OSError:
            seen[cpu] = cpu
    return list(seen.values())


def tokens_per_second(ballast, args, threads):
    command = [ballast, "bench", "-m", args.model, "-p", "0", "-n", str(args.tokens), "-r", "1",
               "-t", str(threads), "-o", "json", "--progress", "none", "--no-read-test"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr or f"{ballast} failed with {run.returncode}")
    return json.loads(run.stdout)[-1]["avg_ts"]


def beside_spinners(ballast, args, threads, cpus):
    spinners = []
    try:
        for cpu in cpus:
            spinners.append(subprocess.Popen([sys.executable, "-c", SPIN]))
            os.sched_setaffinity(spinners[-1].pid, {cpu})
        return tokens_per_second(ballast, args, threads)
    finally:
        for s in spinners:
            s.kill()
            s.wait()


def verdict(name, values, alone, mark):
    share = [v / alone for v in values]
    middle = statistics.median(share)
    good = mark is None or middle >= mark
    line = f"{name:16} {statistics.median(values):9.2f} t/s"
    if mark is not None:
        line += (f"  {middle:4.2f} of that alone ({min(share):4.2f} to {max(share):4.2f}), "
                 f"mark {mark:4.2f}: {'met' if good else 'MISSED'}")
    print(line, flush=True)
    return good


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ballast")
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=0, help="as many as there are cores")
    p.add_argument("--also", action="append", default=[], help="another build, in the same rounds")
    args = p.parse_args()
    cpus = cores()
    threads = args.threads or len(cpus)
    builds = [args.ballast] + args.also
    seen = {b: ([], [], []) for b in builds}
    for _ in range(args.rounds):
        for b in builds:
            alone, busy, twice = seen[b]
            alone.append(tokens_per_second(b, args, threads))
            busy.append(beside_spinners(b, args, threads, cpus))
            twice.append(tokens_per_second(b, args, 2 * threads))
    good = True
    for b in builds:
        alone, busy, twice = seen[b]
        middle = statistics.median(alone)
        if len(builds) > 1:
            print(b)
        verdict(f"{threads} threads", alone, middle, None)
        good &= verdict("busy cores", busy, middle, BUSY_MARK)
        good &= verdict(f"{2 * threads} threads", twice, middle, TWICE_MARK)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
