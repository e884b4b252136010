#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicted against measured speed on this machine: ten synthetic models of different shape and type.

  predict_check.py --ballast PATH --dir FOLDER [--prefix CMD] [--only NAME,...] [--phase decode|prefill]
                 [--tries N] [--log FILE] [--again FILE]

Wants a quiet machine, 5 GB of disk in FOLDER and about 20 minutes. Makes one model at a time, probes the machine,
measures decode (32 tokens after 0 and 4096 others) and prefill (512 and 2048 tokens), medians of 5, and probes again.
Where the figures that decide a row moved by more than 5 % from one probe to the next, or the row's own five samples lie
so far apart that their quartiles differ by more than 10 %, the machine was not the same all the while: the row is
measured anew, up to N times (default 3), and what never stood still is printed with the reason and does not count.
A virtual machine's memory may change its speed by half for a second or two: of twelve samples of decode those count that
stand between two read tests within 5 % of the probe's, if they are five.
What is predicted comes from the probe before. Exit 1: the median of the errors is above 10 % or one is above 20 %.
--prefix is put before every command that measures, such as 'chrt -r 1'. --log keeps what was measured as JSON lines;
--again FILE predicts those anew from the machines in them, with the models' headers alone.
"""
import argparse, json, math, os, shlex, subprocess, sys, tempfile

MODELS = [  # name, arguments of synth, types whose speed decides
    ("qwen3-30b-a3b-q4k", "qwen3-30b-a3b --layers 6 --vocab 32000 -t q4_k_exps", "q4_k q8_0"),
    ("gpt-oss-20b-mxfp4", "gpt-oss-20b --layers 6 --vocab 32000 -t mxfp4_moe", "mxfp4 q8_0"),
    ("llama-3-8b-q4k", "llama-3-8b --layers 8 --vocab 32000 -t q4_k", "q4_k"),
    ("llama-3-8b-q8", "llama-3-8b --layers 8 --vocab 32000 -t q8_0", "q8_0"),
    ("llama-3.2-3b-q6k", "llama-3.2-3b --layers 14 -t q6_k", "q6_k"),
    ("qwen3-next-80b-q4k", "qwen3-next-80b --layers 4 --vocab 32000 -t q4_k_exps", "q4_k q8_0"),
    ("deepseek-v4-flash-mxfp4", "V4 --layers 5 --vocab 32000 -t mxfp4_moe", "mxfp4 q8_0"),
    ("glm-4.5-air-iq4xs", "glm-4.5-air --layers 3 --vocab 32000 -t q8_0,*_exps=iq4_xs", "iq4_xs q8_0"),
    ("phi-4-q5k", "phi-4 --layers 8 --vocab 32000 -t q5_k", "q5_k"),
    ("ernie-4.5-0.3b-f16", "ernie-4.5-0.3b -t f16", "f16"),
    ("ernie-4.5-21b-iq3xxs", "ernie-4.5-21b-a3b --layers 10 --vocab 32000 -t q6_k,*_exps=iq3_xxs", "iq3_xxs q6_k"),
]
V4 = {"like": "deepseek-v4-flash", "metadata": {"expert_count": 48}} # whole layers would not fit
# phase, tokens, depth before them, mean depth at which a step is predicted
ROWS = [("decode", 32, 0, 16), ("decode", 32, 4096, 4112), ("prefill", 512, 0, 0), ("prefill", 2048, 0, 768)]
UBATCH, CTX = 512, 6144
STILL, APART = 0.05, 0.10 # probes may differ by, quartiles of a row's samples
SAMPLES, MOST_SAMPLES = 5, 12

def run(args, prefix=()):
    r = subprocess.run([*prefix, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        sys.exit("%s: exit %d\n%s" % (" ".join(args), r.returncode, r.stderr[-2000:]))
    return r.stdout

def synth(a, text, path, header):
    words = shlex.split(text)
    if words[0] == "V4":
        words[0] = os.path.join(a.dir, "v4.json")
        with open(words[0], "w", encoding="utf-8") as f:
            json.dump(V4, f)
    run([a.ballast, "synth", *words, "-o", path, *(["--no-data"] if header else [])])

def probe(a):
    return json.loads(run([a.ballast, "probe", "--format", "json"], a.prefix))

def figures(machine, types, phase, depth):
    """What decides a row's speed: reading weights, and at depth the cache, or multiplying weights."""
    d = machine["devices"][0]
    what = "decode_bps" if phase == "decode" else "macs_per_s_512"
    out = {t + " " + what: d["rates"][t][what] for t in types.split()}
    if phase == "decode":
        out["read_measured_bps"] = d["read_measured_bps"]
        if depth:
            out["attention of few"] = per_head_and_row(d["kv_rates"]["few"]["f16"])
    return out

def per_head_and_row(r, group=4, head=128):
    """Of the usual shape; what its parts are alone is known less well than their sum."""
    parts = ((group, "scores_per_s"), (2 * group * head, "macs_per_s"), (2 * head, "values_per_s"))
    return sum(n / r[k] for n, k in parts if k in r)

def moved(before, after, types, row):
    x, y = figures(before, types, row[0], row[2]), figures(after, types, row[0], row[2])
    return max((abs(math.log(y[k] / x[k])), k) for k in x)

def bench(a, path, row, *more):
    phase, n, depth, _ = row
    sizes = ["-p", "0", "-n", str(n)] if phase == "decode" else ["-p", str(n), "-n", "0"]
    return json.loads(run([a.ballast, "bench", "-m", path, *sizes, "-d", str(depth), "-ub", str(UBATCH), *more, "-o", "json"],
                          a.prefix))[-1]

def decode_samples(a, path, row, read_bps):
    r = bench(a, path, row, "-r", str(MOST_SAMPLES), "--read-tests")
    like = [abs(math.log(gbs * 1e9 / read_bps)) <= STILL for gbs in r["read_tests_gbs"]]
    return [ts for i, ts in enumerate(r["samples_ts"]) if like[i] and like[i + 1]]

def measure(a, path, row, before):
    """Median and how far the samples' quartiles lie apart; too few of them: as far as can be."""
    if row[0] == "decode":
        s = sorted(decode_samples(a, path, row, before["devices"][0]["read_measured_bps"]))
    else:
        s = sorted(bench(a, path, row, "-r", str(SAMPLES), "--no-read-test")["samples_ts"])
    if len(s) < SAMPLES:
        return (s[len(s) // 2] if s else math.nan), math.inf
    return s[len(s) // 2], s[len(s) - 1 - len(s) // 4] / s[len(s) // 4] - 1

def predict(a, path, machine, row):
    phase, _, _, depth = row
    with tempfile.NamedTemporaryFile("w", suffix=".json", dir=a.dir) as f:
        json.dump(machine, f)
        f.flush()
        plan = json.loads(run([a.ballast, "plan", "-m", path, "--machine", f.name, "-c", str(CTX), "-ub", str(UBATCH),
                               "--depth", str(max(depth, 1)), "--format", "json"]))
    return plan["derived"]["prediction"][phase]["tok_per_s"]

def why_not(r):
    """What speaks against counting a row; empty: nothing."""
    if r["moves"] > STILL:
        return "%s moved %.1f %% between probes" % (r["what"], 100 * r["moves"])
    if math.isinf(r["apart"]):
        return "memory's speed did not stand still for %d samples" % SAMPLES
    if r["apart"] > APART:
        return "samples %.1f %% apart" % (100 * r["apart"])
    return ""

def unrest(r):
    return max(r["moves"] / STILL, r["apart"] / APART)

def show(r):
    phase, n, depth, _ = r["row"]
    bad = why_not(r)
    print("%-24s %-8s %5d after %4d  measured %8.2f  predicted %8.2f  %+6.1f %%  "
          "probes %4.1f %%, samples %4.1f %%, try %d%s" %
          (r["model"], phase, n, depth, r["measured"], r["predicted"], 100 * (r["predicted"] / r["measured"] - 1),
           100 * r["moves"], 100 * r["apart"], r["try"], ", NOT COUNTED: " + bad if bad else ""))
    sys.stdout.flush()

def note(a, result):
    if a.log:
        with open(a.log, "a", encoding="utf-8") as f:
            f.write(json.dumps(result) + "\n")

def one(a, name, text, types):
    """The rows of a model, each with the quietest try. Prompts share their probes."""
    path, best = os.path.join(a.dir, name + ".gguf"), {}
    synth(a, text, path, False)
    before = probe(a)
    for t in range(1, a.tries + 1):
        pending = [r for r in a.rows if r not in best or why_not(best[r])]
        for group in [[r] for r in pending if r[0] == "decode"] + [[r for r in pending if r[0] == "prefill"]]:
            if not group:
                continue
            speeds = [measure(a, path, r, before) for r in group]
            after = probe(a)
            for r, (speed, apart) in zip(group, speeds):
                moves, what = moved(before, after, types, r)
                result = {"model": name, "row": r, "try": t, "moves": moves, "what": what, "measured": speed, "apart": apart,
                          "before": before, "after": after}
                note(a, result)
                if r not in best or unrest(result) < unrest(best[r]):
                    best[r] = result
            before = after
    for r in a.rows:
        yield dict(best[r], predicted=predict(a, path, best[r]["before"], r))
    os.unlink(path)

def again(a, log):
    best = {}
    for line in open(log, encoding="utf-8"):
        r = json.loads(line)
        key = (r["model"], tuple(r["row"]))
        if key not in best or unrest(r) < unrest(best[key]):
            best[key] = r
    for name, text, _ in MODELS:
        path = os.path.join(a.dir, name + ".header.gguf")
        for row in ROWS:
            if (name, row) not in best:
                continue
            if not os.path.exists(path):
                synth(a, text, path, True)
            yield dict(best[name, row], predicted=predict(a, path, best[name, row]["before"], row))

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ballast", required=True)
    p.add_argument("--dir", required=True)
    p.add_argument("--prefix", type=shlex.split, default=[])
    p.add_argument("--only", type=lambda s: s.split(","))
    p.add_argument("--phase", choices=["decode", "prefill"])
    p.add_argument("--tries", type=int, default=3)
    p.add_argument("--log")
    p.add_argument("--again")
    a = p.parse_args()
    a.rows = [r for r in ROWS if a.phase in (None, r[0])]
    if a.again:
        rows = again(a, a.again)
    else:
        rows = (r for m in MODELS if not a.only or m[0] in a.only for r in one(a, *m))
    errors, n_rows = [], 0
    for r in rows:
        show(r)
        n_rows += 1
        if not why_not(r):
            errors.append((abs(r["predicted"] / r["measured"] - 1), math.log(r["predicted"] / r["measured"])))
    if not errors:
        sys.exit("the machine never stood still")
    e = sorted(x for x, _ in errors)
    median, sd = (e[(len(e) - 1) // 2] + e[len(e) // 2]) / 2, math.sqrt(sum(y * y for _, y in errors) / len(errors))
    print("%d of %d rows count: median error %.1f %%, worst %.1f %%, root mean square of logarithms %.3f" %
          (len(e), n_rows, 100 * median, 100 * e[-1], sd))
    sys.exit(0 if median <= 0.10 and e[-1] <= 0.20 else 1)

main()
