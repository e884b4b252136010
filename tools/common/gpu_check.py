#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Parts of tools/gpu-check.sh that read JSON: sections of its report on standard output, what is going on on standard error.

  gpu_check.py [option...] splits      divided plans against the CPU alone, in float
  gpu_check.py [option...] speeds      what the cards do, as measured by 'ballast probe' and card_peaks
  gpu_check.py [option...] bench       made-up models on the first card, held against that
  gpu_check.py [option...] placements  predicted and measured speed of three placements

  --ballast FILE   --devices cuda0,hip0   --machine FILE (of probe)   --peaks FILE (a line of card_peaks for each card)
  --references DIR (with models/)   --models DIR (for made-up ones)   --seconds N   --small

Exit 1: something is wrong or did not run. Goals that are missed are marked and counted in a line 'goals: N of M'.
"""
import argparse, array, json, math, os, signal, subprocess, sys, tempfile, time

SPLIT_MODELS = ["mixtral-f32", "gpt-oss-mxfp4", "qwen3moe-iq3", "deepseek4-f32", "qwen3next-f32", "llama-f32"]
IDS = [3 + 7 * i % 90 for i in range(24)]
CHUNKS = "13,1"         # a long step, then one token at a time
MOST_NMSE = 1e-9
GOAL_READ, GOAL_MACS, GOAL_ERROR = 0.70, 0.40, 0.15
# shape, recipe, GB and layers of the whole
MODELS = [("llama-3-8b", "q4_k", 4.6, 32), ("llama-3-8b", "q8_0", 8.6, 32), ("gpt-oss-20b", "mxfp4_moe", 12.1, 24),
          ("qwen3-30b-a3b", "q4_k", 17.3, 48)]
PLACED = ("qwen3-30b-a3b", "q4_k_exps", 18.0, 48)
PLACED_GB = 6           # of it; one that is read from RAM need not be larger
# The same kinds of tensors, small enough for kernels that run on the host.
SMALL = {"embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 4, "attention.head_count_kv": 2}
SMALL_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}

class Failure(Exception):
    pass

def note(text):
    print(text, file=sys.stderr, flush=True)

def run(a, *args):
    """Standard output; what is left of the time is the program's limit."""
    left = a.until - time.monotonic()
    if left < 1:
        raise Failure("no time left")
    note("ballast " + " ".join(args))
    try:
        r = subprocess.run([a.ballast, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        raise Failure("'ballast %s' was stopped after %.0f s" % (args[0], left)) from None
    if r.returncode:
        note(r.stderr[-4000:])
        last = (r.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failure("'ballast %s': exit %d: %s" % (args[0], r.returncode, last))
    return r.stdout

def save(path, what):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(what, f)

def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)

def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)

def head(*cells):
    row(*cells)
    row(*["---"] * len(cells))

# ---- divided plans ----

def logits(a, model, plan, devices):
    out = os.path.join(a.tmp, "logits.f32")
    where = ["--plan", plan, "--devices", devices] if plan else ["-c", "128", "-t", "1"]
    run(a, "logits", "-m", model, "--exact", "--ids", " ".join(map(str, IDS)), "--chunks", CHUNKS, *where, "-o", out)
    values = array.array("f")
    with open(out, "rb") as f:
        values.frombytes(f.read())
    return values

def nmse(x, want):
    if len(x) != len(want):
        raise Failure("%d logits, not %d" % (len(x), len(want)))
    err, total = sum((p - q) ** 2 for p, q in zip(x, want)), sum(q * q for q in want)
    return err / total if math.isfinite(err) else math.inf

def base_plan(a, model, devices):
    path = os.path.join(a.tmp, "plan.json")
    run(a, "plan", "-m", model, "--exact", "-c", "128", "-t", "1", "--devices", devices, "-ngl", "all", "-o", path)
    return load(path)

def experts_home(plan):
    """Experts on the CPU; how many layers have some."""
    for p in plan["placement"]:
        if p.get("part") == "experts":
            p["device"] = "cpu0"

def has_experts(plan):
    return any(p.get("part") == "experts" for p in plan["placement"])

def some_experts_home(plan):
    for layer in moe_layers(plan):
        plan["placement"].append({"layer": layer, "experts": "0-3", "device": "cpu0"})

def layers_of(p):
    first, _, last = p["layers"].partition("-")
    return range(int(first), int(last or first) + 1)

def moe_layers(plan):
    return [l for p in plan["placement"] if p.get("part") == "experts" for l in layers_of(p)]

def half_home(plan):
    """The first half of the layers on the CPU."""
    n = (plan["model"]["n_layers"] + 1) // 2
    placed = []
    for p in plan["placement"]:
        if "layers" not in p:
            placed.append(p)
            continue
        for l in layers_of(p):
            placed.append(dict(p, layers=str(l), device="cpu0" if l < n else p["device"]))
    plan["placement"] = placed

def streamed(plan):
    experts_home(plan)
    plan["settings"]["stream_from_tok"], plan["settings"]["chunk_bytes"] = 2, 20000

def slotted(plan):
    card = next(p["device"] for p in plan["placement"] if p.get("part") == "attn")
    layers = moe_layers(plan)
    experts_home(plan)
    plan["placement"] += [{"layers": str(l), "slots": 3, "device": card} for l in layers]

def split(a, name, variant, edit, devices, want):
    model = os.path.join(a.references, "models", name + ".gguf")
    plan = base_plan(a, model, devices)
    if edit in (experts_home, some_experts_home, streamed, slotted) and not has_experts(plan):
        return True
    if edit:
        edit(plan)
        plan.pop("derived", None)
    path = os.path.join(a.tmp, "split.json")
    save(path, plan)
    try:
        err = nmse(logits(a, model, path, devices), want)
    except Failure as why:
        row(name, variant, "", "**%s**" % why)
        return False
    row(name, variant, "%.1e" % err, "ok" if err <= MOST_NMSE else "**too far apart**")
    return err <= MOST_NMSE

def splits(a):
    first = a.devices.split(",")[0]
    variants = [("all on %s" % first, None, first), ("experts on the CPU", experts_home, first),
                ("four experts of each layer on the CPU", some_experts_home, first),
                ("half of the layers on the CPU", half_home, first), ("experts sent for long steps", streamed, first),
                ("experts in slots", slotted, first)]
    if a.devices != first:
        variants += [("layers over " + a.devices, None, a.devices), ("the same, experts sent", streamed, a.devices)]
    good = True
    head("model", "plan", "NMSE of the CPU's logits", "")
    for name in SPLIT_MODELS[:2] if a.small else SPLIT_MODELS:
        want = logits(a, os.path.join(a.references, "models", name + ".gguf"), None, None)
        for v in variants:
            good = split(a, name, *v, want) and good
    return good

# ---- speeds ----

def cards(machine):
    return [d for d in machine["devices"] if d["kind"] == "gpu"]

def gbs(v):
    return "%.4g" % (v / 1e9) if v else "?"

def peaks_of(a):
    if not os.path.exists(a.peaks):
        return []
    with open(a.peaks, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.startswith("{")]

def speeds(a):
    machine = load(a.machine)
    good = len(peaks_of(a)) == len(a.devices.split(","))
    head("card", "reads GB/s", "halves TFLOPS")
    for p in peaks_of(a):
        row("%s, %s" % (p["card"], p["arch"]), gbs(p["read_bps"]), "%.4g" % (2 * p["f16_macs_per_s"] / 1e12))
    print()
    head("card", "to it GB/s", "back GB/s", "crossing us", "launch us", "layer us", "step us")
    for d in cards(machine):
        link = next((l for l in machine["links"] if l["b"] == d["id"]), {})
        there, back = link.get("ab_measured_bps", 0), link.get("ba_measured_bps", 0)
        good = good and there > 0 and back > 0 and d.get("launch_ns", 0) > 0
        row(d["id"], gbs(there), gbs(back), *["%.3g" % (x / 1e3) for x in (link.get("cross_ns", 0), d.get("launch_ns", 0),
            d.get("layer_ns", 0), d.get("step_ns", 0))])
    print()
    head("card", "type", "decode GB/s", "GMAC/s with 8", "64", "512 tokens")
    for d in cards(machine):
        good = good and bool(d.get("rates"))
        for name, r in sorted(d.get("rates", {}).items()):
            row(d["id"], name, gbs(r.get("decode_bps", 0)), *[gbs(r.get("macs_per_s_%d" % n, 0)) for n in (8, 64, 512)])
    return good and bool(cards(machine))

# ---- made-up models ----

def room(a):
    """Bytes that a model may have: of the folder, of RAM, of the first card."""
    disk = os.statvfs(a.models)
    with open("/proc/meminfo", encoding="ascii") as f:
        free = next(1024 * int(l.split()[1]) for l in f if l.startswith("MemAvailable"))
    return min(0.9 * disk.f_bavail * disk.f_frsize, 0.45 * free, 0.75 * cards(load(a.machine))[0]["mem_bytes"])

def small_shape(a, shape):
    metadata = dict(SMALL)
    if shape != "llama-3-8b":
        metadata.update(SMALL_EXPERTS)
    path = os.path.join(a.tmp, shape + ".json")
    save(path, {"like": shape, "layers": 2, "vocab": 300, "metadata": metadata})
    return path

def make(a, model, most_bytes):
    """The file and what of it there is, in words."""
    shape, recipe, gb, layers = model
    path = os.path.join(a.models, "gpu-check-%d.gguf" % os.getpid())
    n = max(1, min(layers, int(layers * most_bytes / (gb * 1e9))))
    cut = [] if a.small or n == layers else ["--layers", str(n)]
    run(a, "synth", small_shape(a, shape) if a.small else shape, "-t", recipe, *cut, "-o", path)
    size = os.path.getsize(path) / 1e9
    return path, "%s %s, %s%.3g GB" % (shape, recipe, "%d of %d layers, " % (n, layers) if cut else "", size)

def planned(a, path, flags, *more):
    out = os.path.join(a.tmp, "placed.json")
    run(a, "plan", "-m", path, "--machine", a.machine, "-dev", a.device_id, "-c", "4096", "-ub", str(a.ubatch), "-ngl",
        "all", *flags, *more, "-o", out)
    return out

def measured(a, path, plan, *sizes):
    # Programs that share the processors are none of the card's business: the median of a few counts.
    text = run(a, "bench", "-m", path, "--plan", plan, "--devices", a.devices.split(",")[0], *sizes, "-r", "1" if a.small
               else "5", "--no-read-test", "-o", "json")
    return {("decode" if r["n_gen"] else "prefill"): r for r in json.loads(text)}

def judged(rate, peak, goal, goals):
    """The share that a rate is of what the card does at best; 0: not known."""
    if not peak:
        return "?"
    share = rate / peak
    goals.append(share >= goal)
    return "%.0f %%%s" % (100 * share, "" if share >= goal else " (goal %.0f %%)" % (100 * goal))

def bench_one(a, model, peak, goals):
    path, what = make(a, model, room(a))
    try:
        r = measured(a, path, planned(a, path, []), "-p", str(a.prompt), "-n", str(a.gen), "-ub", str(a.ubatch))
    finally:
        os.unlink(path)
    decode, prefill = r["decode"], r["prefill"]
    row(what, "%.5g" % decode["median_ts"], gbs(1e9 * decode["read_gbs"]),
        judged(1e9 * decode["read_gbs"], peak.get("read_bps", 0), GOAL_READ, goals), "%.5g" % prefill["median_ts"],
        "%.4g" % (2e-3 * prefill["weight_gmacs"]),
        judged(1e9 * prefill["weight_gmacs"], peak.get("f16_macs_per_s", 0), GOAL_MACS, goals))

def bench(a):
    peak, goals, good = next(iter(peaks_of(a)), {}), [], True
    print("%s. Bytes touched: weights that a token uses and cached state. Multiply-adds: those with weights.\n" % a.device_id)
    head("model", "decode t/s", "GB/s", "of reading", "prefill %d t/s" % a.prompt, "TFLOPS", "of halves")
    for model in MODELS:
        try:
            bench_one(a, model, peak, goals)
        except Failure as why:
            row("%s %s" % model[:2], "**%s**" % why, *[""] * 5)
            good = False
    print("\ngoals: %d of %d" % (sum(goals), 2 * len(MODELS)))
    return good

# ---- predicted and measured ----

def predicted(a, path, flags, phase, depth):
    plan = load(planned(a, path, flags, "--depth", str(depth)))
    guess = plan["derived"].get("prediction", {}).get(phase, {}).get("tok_per_s", 0)
    if not guess and not a.small: # where kernels run on the host, probe has no time for all of them
        raise Failure("nothing is predicted: probe did not measure the card")
    return guess

def place_one(a, path, name, flags, goals):
    r = measured(a, path, planned(a, path, flags), "-p", str(a.prompt), "-n", str(a.gen), "-ub", str(a.ubatch))
    for phase, depth in (("decode", a.gen // 2), ("prefill", max(1, (a.prompt - a.ubatch) // 2))):
        guess, speed = predicted(a, path, flags, phase, depth), r[phase]["median_ts"]
        goals.append(abs(guess / speed - 1) <= GOAL_ERROR)
        row(name, phase, "%.4g" % speed, "%.4g" % guess,
            "%+.0f %%%s" % (100 * (guess / speed - 1), "" if goals[-1] else " (goal %.0f %%)" % (100 * GOAL_ERROR)))

def placements(a):
    path, what = make(a, PLACED, min(PLACED_GB * 1e9, room(a)))
    goals, good = [], True
    print(what + "\n")
    head("placement", "", "measured t/s", "predicted t/s", "off by")
    try:
        half = load(planned(a, path, []))["model"]["n_layers"] // 2
        for name, flags in (("all on the card", []), ("experts on the CPU", ["-cmoe"]),
                            ("experts of half the layers on the CPU", ["-ncmoe", str(half)])):
            try:
                place_one(a, path, name, flags, goals)
            except Failure as why:
                row(name, "**%s**" % why, "", "", "")
                good = False
    finally:
        os.unlink(path)
    print("\ngoals: %d of 6" % sum(goals))
    return good

def main():
    p = argparse.ArgumentParser()
    p.add_argument("part", choices=["splits", "speeds", "bench", "placements"])
    for name in ("ballast", "devices", "machine", "peaks", "references", "models"):
        p.add_argument("--" + name)
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)) # made-up models go, whoever stops it
    a.until = time.monotonic() + a.seconds
    a.prompt, a.gen, a.ubatch = (24, 4, 16) if a.small else (2048, 64, 2048)
    if a.part in ("bench", "placements"):
        a.device_id = cards(load(a.machine))[0]["id"]
    with tempfile.TemporaryDirectory() as a.tmp:
        try:
            good = globals()[a.part](a)
        except Failure as why:
            print("\n**%s**" % why)
            good = False
    sys.exit(0 if good else 1)

main()
