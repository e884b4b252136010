#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plans in situations that people reported of other programs: a rig, a model's header, and what must hold.

  field.py BALLAST [CASE...]

Every case names the reports that it comes from. Rigs are made here, models come from `ballast synth --no-data`, so that
nothing but headers can be read.
"""
import json, os, re, subprocess, sys, tempfile, time

GIB = 1 << 30
PROGRAM = None
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/reference/models/qwen35moe-f32.gguf")

# ---- rigs -----------------------------------------------------------------------------------------------

def cpu(mem_gib, cores=16, read_gbps=80, **more):
    return dict({"id": "cpu0", "name": "host", "kind": "cpu", "backend": "cpu", "mem_kind": "host",
                 "mem_bytes": mem_gib * GIB, "read_rated_bps": int(read_gbps * 1e9), "sockets": 1, "cores": cores,
                 "threads": 2 * cores, "isa": "avx512-vnni-wide", "clock_hz": 4000000000}, **more)

def card(i, mem_gib, read_gbps=936, f16_tmacs=71, backend="cuda", **more):
    return dict({"id": "gpu%d" % i, "name": "card of %d GiB" % mem_gib, "kind": "gpu", "backend": backend,
                 "mem_kind": "dedicated", "mem_bytes": int(mem_gib * GIB), "driver_bytes": 350 << 20,
                 "read_rated_bps": int(read_gbps * 1e9), "f32_macs_per_s": int(f16_tmacs / 2 * 1e12),
                 "f16_macs_per_s": int(f16_tmacs * 1e12)}, **more)

def link(i, gbps=25):
    return {"a": "cpu0", "b": "gpu%d" % i, "name": "PCIe", "ab_rated_bps": int(gbps * 1e9),
            "ba_rated_bps": int(gbps * 1e9)}

def rig(host, *cards, links=None):
    m = {"ballast_machine": 1, "name": "a rig of a report", "devices": [host, *cards],
         "links": links or [link(i) for i, c in enumerate(cards) if c["mem_kind"] == "dedicated"]}
    for l in m["links"]:
        l.setdefault("via", "root0")
    if m["links"]:
        m["hubs"] = [{"id": "root0", "kind": "root"}]
    return m

def two_24(ram_gib=128):
    return rig(cpu(ram_gib), card(0, 24), card(1, 24))

# ---- running --------------------------------------------------------------------------------------------

def run(*args, code=0):
    p = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60)
    assert p.returncode == code, "%s: exit code %d, not %d: %s" % (" ".join(args), p.returncode, code, p.stderr)
    return p

def write(name, value):
    with open(name, "w", encoding="utf-8") as f:
        json.dump(value, f)
    return name

def header(shape, *args):
    name = re.sub(r"\W", "_", "_".join((shape,) + args)) + ".gguf"
    if not os.path.exists(name):
        run("synth", shape, "-o", name, "--no-data", *args)
    return name

def plan(model, machine, *args, code=0):
    p = run("plan", "-m", model, "--machine", write("rig.json", machine), "--format", "json", *args, code=code)
    if code:
        return p.stderr
    j = json.loads(p.stdout)
    return dict(j["derived"], settings=j["settings"])

def table(model, machine, *args):
    return run("plan", "-m", model, "--machine", write("rig.json", machine), *args).stdout

def fits(j):
    for d in j["devices"]:
        assert d["planned_bytes"] <= d["budget_bytes"] <= d["usable_bytes"], "%s: more planned than it has" % d["id"]

def planned(j, device, purpose=None):
    return sum(m["planned_bytes"] for m in j["memory"]
               if m["device"] == device and purpose in (None, m["purpose"]))

def layers_on(j, device, what):
    return sum(g["last"] - g["first"] + 1 for g in j["groups"] if g.get(what) == device)

def refused(text, *words):
    assert text.count("\n") == 1, "not one line: %r" % text
    for w in words:
        assert re.search(w, text), "%r does not say %r" % (text, w)

def places(j):
    return j["groups"], j["embed"], j["head"]

# ---- cases ----------------------------------------------------------------------------------------------

def case_01_experts_kept_in_ram_free_both_cards():
    """LC#15136, #15263: -ncmoe N frees only the first card."""
    j = plan(header("qwen3-30b-a3b"), rig(cpu(64), card(0, 7.5), card(1, 7.5)), "-ncmoe", "24", "-c", "8192")
    fits(j)
    on = [layers_on(j, "gpu%d" % i, "experts") for i in range(2)]
    assert layers_on(j, "cpu0", "experts") == 24 and min(on) >= 4, "experts of %s layers" % on

def case_02_fits_or_names_device_and_shortfall():
    """IK#1464: 35 GiB asked of one 24 GiB card."""
    m = header("glm-4.5-air")
    fits(plan(m, two_24(), "-ncmoe", "24", "-c", "65536"))
    refused(plan(m, two_24(24), "-ncmoe", "24", "-c", "65536", code=3), "cpu0|gpu[01]", r"[0-9.]+ GiB", "short|lacks")

def case_03_one_card_by_either_option():
    """LC#13612: -sm none is not -ts 100,0,0."""
    m, r = header("llama-3-8b"), rig(cpu(64), card(0, 24), card(1, 24), card(2, 24))
    one, other = plan(m, r, "-sm", "none", "-c", "4096"), plan(m, r, "-ts", "100,0,0", "-c", "4096")
    assert places(one) == places(other)
    assert planned(one, "gpu1") == planned(one, "gpu2") == 0 == planned(other, "gpu1") + planned(other, "gpu2")

def case_04_a_slow_small_card_gets_the_least():
    """LC#18914: a slow small card treated like the others."""
    r = rig(cpu(192), card(0, 24), card(1, 24), card(2, 24), card(3, 12, 192, 10), links=None)
    j = plan(header("glm-4.5-air"), r, "-c", "16384")
    fits(j)
    slow, fast = planned(j, "gpu3", "weights"), [planned(j, "gpu%d" % i, "weights") for i in range(3)]
    assert slow <= min(fast), "%d bytes on the slow card, %s on the others" % (slow, fast)
    assert re.search("(experts|dense part) on gpu3: |gpu3 is not used: ", table(header("glm-4.5-air"), r, "-c", "16384"))

def case_05_layers_are_split_by_bytes():
    """LC#12654: first layers much larger, an even split does not fit."""
    shape = write("large_first.json", {
        "like": "llama-3-8b", "layers": 24,
        "metadata": {"feed_forward_length": {"i32": [43008] * 8 + [14336], "repeat": [14336]}}})
    j = plan(header(shape), rig(cpu(64), card(0, 4.5), card(1, 4.5)), "-c", "2048")
    fits(j)
    assert layers_on(j, "cpu0", "attention") == 0 and j["head"] != "cpu0"

def case_06_the_longest_context_displaces_nothing():
    """LC#18097: a context that nobody asked for pushes layers off the card."""
    m, room = header("qwen3-30b-a3b"), rig(cpu(128), card(0, 20))
    j = plan(m, room, "-c", "max")
    fits(j)
    n = longest(table(m, room, "-c", "max"))
    assert 4096 <= n < 40960 and layers_on(j, "gpu0", "experts") == 48, n
    assert planned(j, "gpu0") > 0.98 * j["devices"][1]["budget_bytes"], "room is left for a longer one"
    assert layers_on(plan(m, room, "-c", str(n + 2048)), "gpu0", "experts") < 48, "more would still have fitted"
    # Where weights are in RAM anyway it is any that fits, and with 32 GiB all that it was trained with.
    small = rig(cpu(128), card(0, 12))
    assert longest(table(m, small, "-c", "max")) == longest(table(m, rig(cpu(128), card(0, 32)), "-c", "max")) == 40960
    # A smaller type where that gives much more of it, or needs nothing in RAM: never unasked.
    j = plan(m, room, "-c", "max", "-ctk", "auto", "-ctv", "auto")
    assert any("a cache of q8_0: a context of 40960 tokens fits, with f16 one of %d" % n in x for x in j["notes"]), j["notes"]
    j = plan(m, rig(cpu(128), card(0, 32)), "-c", "max", "-ctk", "auto", "-ctv", "auto")
    assert any("a cache of f16: it fits" in x for x in j["notes"]), j["notes"]
    # Shorter only if allowed, and only so far.
    full = rig(cpu(4), card(0, 16))
    refused(plan(m, full, "-c", "40960", code=3), "-c ")
    j = plan(m, full, "-c", "40960", "--fit-ctx", "4096")
    note, = (x for x in j["notes"] if x.startswith("context reduced from 40960 to "))
    n = int(note.split()[5])
    refused(plan(m, full, "-c", "40960", "--fit-ctx", str(n + 256), code=3), "-c %d" % n)

def longest(text):
    return int(re.search(r"^context (\d+) tokens: (?:the longest|all)", text, re.M).group(1))

def case_07_drafting_blocks_are_accounted_for():
    """LC#23472, #28172, PR#23801: blocks for drafting not in the budget, or reserved for twice."""
    with_draft, without = header("glm-4.5-air"), header("glm-4.5-air", "--layers", "46")
    r = rig(cpu(128), card(0, 24))
    a, b = plan(with_draft, r, "-c", "8192"), plan(without, r, "-c", "8192")
    more = sum(d["planned_bytes"] for d in a["devices"]) - sum(d["planned_bytes"] for d in b["devices"])
    assert abs(more) < 1 << 20, "%d bytes more" % more # its header is longer
    assert "draft" in table(with_draft, r, "-c", "8192") and "draft" not in table(without, r, "-c", "8192")

def case_08_a_projector_is_refused_by_name():
    """LC#18111: the vision part is loaded later and does not fit."""
    write_projector("mmproj.gguf", "gemma3")
    m = header("gemma-3-270m")
    for verb in (["plan"], ["run", "-p", "x"]):
        refused(run(*verb, "-m", m, "--mmproj", "mmproj.gguf", code=2).stderr, "mmproj.gguf", "gemma3")
    refused(run("plan", "-m", m, "--mmproj", "none.gguf", code=4).stderr, "none.gguf")
    refused(run("plan", "-m", m, "--mmproj", m, code=4).stderr, "projector")

def case_12_no_card_is_given_more_than_it_has():
    """ollama#14351: a card given more than it has, which spills to RAM quietly."""
    r = rig(cpu(128), card(0, 24), card(1, 8, 448, 40), card(2, 16, 320, 40))
    for shape in ("gpt-oss-120b", "qwen3-235b-a22b", "llama-3-8b"):
        m = header(shape)
        try:
            j = plan(m, r, "-c", "16384")
        except AssertionError:
            refused(plan(m, r, "-c", "16384", code=3), "lacks|short")
            continue
        fits(j)
        if layers_on(j, "cpu0", "experts"):
            assert "experts in RAM: " in table(m, r, "-c", "16384")

def case_13_the_head_counts_as_a_layer():
    """gguf-parser#42: the output layer counted wrongly in -ngl."""
    m, r = header("llama-3-8b"), rig(cpu(64), card(0, 24))
    one, two, all_ = (plan(m, r, "-ngl", n, "-c", "4096") for n in ("1", "2", "33"))
    assert one["head"] == "gpu0" and layers_on(one, "gpu0", "attention") == 0
    assert layers_on(two, "gpu0", "attention") == 1 and layers_on(all_, "gpu0", "attention") == 32
    assert planned(one, "gpu0", "weights") < planned(two, "gpu0", "weights")

def case_14_logits_are_charged_where_they_lie():
    """gguf-parser#40: the buffer of logits charged to the card."""
    m, r = header("llama-3-8b", "--vocab", "150000"), rig(cpu(64), card(0, 24))
    host = plan(m, r, "-ngl", "0", "-c", "4096")
    assert planned(host, "gpu0") == 0
    with_head = plan(m, r, "-ngl", "1", "-c", "4096")
    assert planned(with_head, "gpu0", "compute") >= 150000 * 4
    assert planned(with_head, "cpu0", "output") >= 150000 * 4
    small = plan(header("llama-3-8b", "--vocab", "30000"), r, "-ngl", "1", "-c", "4096")
    more = planned(with_head, "cpu0", "output") - planned(small, "cpu0", "output")
    assert abs(more - 120000 * 4) < 4096, more # rows are rounded up

def case_15_all_experts_count():
    """llmfit#230, #497: memory of a mixture of experts from its active parameters."""
    refused(plan(header("glm-4.5-air"), rig(cpu(16), card(0, 48)), "-c", "4096", code=3), r"lacks [0-9.]+ GiB on (cpu0|gpu0)")

def case_16_compute_grows_smoothly_with_the_batch():
    """LC#24175: a buffer of 42 MiB becomes 7 GiB past a batch of 16."""
    for shape in ("qwen3-30b-a3b", "deepseek-v4-flash", "qwen3-next-80b"):
        before = sent = None
        for ub in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
            j = plan(header(shape), rig(cpu(256), card(0, 24)), "-cmoe", "-c", "8192", "-b", "2048", "-ub", str(ub))
            now = planned(j, "gpu0", "compute") + planned(j, "cpu0", "compute")
            sends = 0 < j["settings"].get("stream_from_tok", 0) <= ub # the card multiplies by experts from here on
            most = (2 if sends == sent else 3) * before + (16 << 20) if before else now
            assert (before or 0) <= now <= most, "%s: %d to %d bytes at %d" % (shape, before, now, ub)
            before, sent = now, sends

def case_17_cache_in_ram_is_bounded_and_shown():
    """LC#7217: -nkvo blows up the compute buffer."""
    m, r = header("llama-3-8b"), rig(cpu(64), card(0, 24), card(1, 12))
    on_cards, in_ram = plan(m, r, "-ngl", "99", "-c", "32768"), plan(m, r, "-ngl", "99", "-nkvo", "-c", "32768")
    fits(in_ram)
    state = planned(on_cards, "gpu0", "state") + planned(on_cards, "gpu1", "state")
    assert planned(in_ram, "cpu0", "state") == state
    assert planned(in_ram, "gpu0", "state") == planned(in_ram, "gpu1", "state") == 0
    for d in ("gpu0", "gpu1"):
        assert planned(in_ram, d, "compute") <= planned(on_cards, d, "compute") + (256 << 20)

def case_18_totals_before_a_slow_load():
    """IK#1302: totals wanted before a slow load."""
    m = header("deepseek-v4-flash")
    assert os.path.getsize(m) < 32 << 20
    text = table(m, rig(cpu(192), card(0, 24)), "-c", "32768")
    for word in ("weights", "state", "compute", "planned", "Predicted"):
        assert word in text, word

def case_30_shared_memory_counts():
    """LC#26089: unified memory shows 0."""
    shared = card(0, 0, 200, 15, "vulkan", mem_kind="unified", shares="cpu0", mem_bytes=30 * GIB, integrated=True,
                  mem_readings=[{"source": "dedicated heap", "bytes": 0}, {"source": "shared heap", "bytes": 30 * GIB}])
    shared.pop("driver_bytes")
    j = plan(header("llama-3-8b"), rig(cpu(32, read_gbps=100), shared), "-c", "4096")
    fits(j)
    d = [d for d in j["devices"] if d["id"] == "gpu0"][0]
    assert d["usable_bytes"] == 30 * GIB
    assert "shared heap" in run("info", "--machine", "rig.json").stdout

def case_31_the_safe_one_of_two_readings():
    """LC#19818, PR#20472: one interface sees the carve-out only, another all."""
    c = card(0, 53, 200, 15, "hip", mem_kind="unified", shares="cpu0", integrated=True,
             mem_readings=[{"source": "hip", "bytes": 6 * GIB}, {"source": "vulkan", "bytes": 53 * GIB}])
    c.pop("driver_bytes")
    r = rig(cpu(64, read_gbps=100), c)
    j = plan(header("llama-3-8b"), r, "-c", "4096")
    usable = {d["id"]: d["usable_bytes"] for d in j["devices"]}
    assert usable["gpu0"] == 6 * GIB
    shown = run("info", "--machine", "rig.json").stdout
    assert "6" in shown and "53" in shown and "vulkan" in shown and "hip" in shown
    j = plan(header("llama-3-8b"), r, "-c", "4096", "--device-set", "gpu0.usable=50GiB")
    assert {d["id"]: d["usable_bytes"] for d in j["devices"]}["gpu0"] == 50 * GIB

def case_33_an_integrated_gpu_beside_a_card_stays_out():
    """LC#28093: an integrated GPU next to a card eats RAM."""
    own = card(1, 16, 80, 2, "vulkan", mem_kind="unified", shares="cpu0", integrated=True)
    own.pop("driver_bytes")
    r = rig(cpu(64), card(0, 32), own)
    for shape in ("gpt-oss-120b", "llama-3-8b"):
        j = plan(header(shape), r, "-c", "8192")
        fits(j)
        assert planned(j, "gpu1") == 0

def case_34_unified_memory_is_not_split():
    """LC#26876: experts kept on the CPU of unified memory are twice as slow."""
    j = json.loads(run("plan", "-m", header("gpt-oss-120b"), "--machine", "strix-halo-128", "-c", "32768", "--format",
                       "json").stdout)["derived"]
    assert {(g["attention"], g["experts"]) for g in j["groups"]} == {("gpu0", "gpu0")}

def case_35_one_numbering():
    """koboldcpp#1023, llama-toolchest#70: two numberings of the same cards."""
    cards = [card(0, 24), card(1, 12, 360, 25)]
    cards[0]["id"], cards[1]["id"] = "pci-0000:41:00.0", "pci-0000:01:00.0"
    links = [dict(link(0), b=c["id"]) for c in cards]
    a = plan(header("gpt-oss-20b"), rig(cpu(64), *cards, links=links), "-c", "8192")
    b = plan(header("gpt-oss-20b"), rig(cpu(64), *cards[::-1], links=links[::-1]), "-c", "8192")
    assert places(a) == places(b), "the order of cards decides"
    assert "pci-0000:41:00.0" in table(header("gpt-oss-20b"), rig(cpu(64), *cards, links=links), "-c", "8192")

# ---- devices that are simulated, and run ------------------------------------------------------------------
#
# Others of this kind are unit tests: 37 test_sim and cli/devices.cases, 39 and 40 test_overlap, 43 test_search_slots, 59
# test_blocks.

def sims(n):
    return ["--devices", ",".join("sim%d" % i for i in range(n)), "--device-set", "cpu0.read=1GB/s"]

def tokens(*args):
    ids = " ".join(str(7 * i % 200 + 3) for i in range(30))
    return run("logits", "-m", TINY, "--ids", ids, "--greedy", "8", "--exact", *args)

def case_11_every_tool_takes_the_same_plan():
    """LC#24436, #28970: one tool fits the model to the cards, another ignores that."""
    for more in ([], ["-ncmoe", "2"], ["-ot", r"blk\.1\..*=CPU"]):
        args = ["-m", TINY, "--devices", "sim0:1900KiB@16GB/s", "--device-set", "cpu0.read=1GB/s", "-b", "32", "-ub", "32",
                "-v", *more]
        says, taken = [], []
        for verb in (["run", "-c", "64", "-p", "a b", "-n", "2"], ["bench", "-p", "0", "-n", "0", "-pg", "32,32", "-r", "1",
                      "--no-warmup", "--no-read-test", "-o", "json"],
                     ["logits", "-c", "64", "--ids", "1 2 3", "--greedy", "3"]):
            p = run(*verb, *args)
            says.append(re.findall("^info: plan: .*", p.stderr, re.M))
            taken += re.findall(r"^total +(\d+)|planned_bytes\": (\d+)", p.stderr + p.stdout, re.M)
        assert says[0] == says[1] == says[2] and len(set("".join(n) for n in taken)) == 1, (says, taken)
        assert any("sim0" in line for line in says[0]) and any("cpu0" in line for line in says[0]), says[0]

def case_19_layers_scattered_over_eight_devices():
    """LC#26152, #24657: an assertion of the scheduler, with more inputs than it has room for."""
    r = rig(cpu(512), *[card(i, 24) for i in range(7)])
    rules = ["-ot", ",".join(r"blk\.%d\.=CUDA%d" % (l, l * 5 % 7) for l in range(0, 43, 2))]
    fits(plan(header("deepseek-v4-flash"), r, "-c", "4096", *rules))
    rules = ["-ot", r"blk\.0\..*exps=sim5,blk\.0\.=sim3,blk\.1\.=sim6,blk\.2\..*exps=sim1,blk\.2\.=sim0,blk\.3\.=sim2"]
    run("plan", "-m", TINY, "--exact", *sims(7), *rules, "-o", "p19.json")
    assert tokens(*sims(7), "--plan", "p19.json").stdout == tokens().stdout

def case_29_pinned_memory_is_of_what_the_limit_leaves():
    """imp#2070: a pinned pool is sized by the host's memory, whatever the limit of the process."""
    limit = 4 * GIB
    for name, text in (("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
                       ("sys/fs/cgroup/a/memory.max", "%d\n" % limit), ("sys/fs/cgroup/a/memory.current", "0\n")):
        os.makedirs(os.path.dirname("root/" + name), exist_ok=True)
        with open("root/" + name, "w") as f:
            f.write(text)
    args = ["plan", "-m", header("qwen3-30b-a3b", "--layers", "6"), "--cgroup-root", "root", "--devices", "sim0:24GiB@50GB/s",
            "--device-set", "cpu0.read=20GB/s", "-cmoe", "-c", "4096", "-ub", "2048", "--format", "json"]
    j = json.loads(run(*args).stdout)["derived"]
    fits(j)
    assert 0 < planned(j, "cpu0", "staging") <= limit / 8 and planned(j, "cpu0") <= limit
    refused(run(*args, "--cgroup-root", "root", "-m", header("qwen3-30b-a3b"), code=3).stderr, "cpu0", "GiB short|lacks")

def case_36_devices_keep_their_order():
    """unsloth#11029: a list of devices in another order is sorted."""
    for names in ("sim1", "sim0"), ("sim0", "sim1"):
        p = run("plan", "-m", TINY, "--devices", ",".join(names), "--device-set", "cpu0.read=1GB/s", "--format", "json")
        assert [d["id"] for d in json.loads(p.stdout)["derived"]["devices"]] == ["cpu0", *names]

def case_38_what_a_step_costs_besides_is_counted():
    """FT#151, #436, #232: the automatic choice is the slow one, since bandwidth alone was looked at."""
    m = header("qwen3-30b-a3b")
    for ns in (5000, 3000000):
        r = rig(cpu(64, 16, 200), card(0, 24, 300, 20, launch_ns=ns), links=[dict(link(0), cross_ns=ns, latency_ns=ns)])
        speed = [plan(m, r, "-c", "4096", "--target", "decode", *a)["prediction"]["decode"]["tok_per_s"]
                 for a in ([], ["-ngl", "0"], ["-ngl", "99", "-cmoe"], ["-ngl", "99"])]
        assert speed[0] >= 0.9 * max(speed), "%.1f chosen, %s by hand" % (speed[0], speed[1:])
        assert (speed[1] > speed[3]) == (ns > 5000), "the rig does not show what it is for: %s" % speed

def case_41_experts_are_sent_from_where_it_pays():
    """LC#27425, #18530: a batch of 32 is where copying begins, whatever the link."""
    at = []
    for gbps in (3, 50):
        j = plan(header("gpt-oss-120b"), rig(cpu(128), card(0, 24), links=[link(0, gbps)]), "-c", "8192", "-ub", "4096",
                 "-b", "4096")
        at.append([d.get("sent_from_tok", 0) for d in j["devices"] if d["id"] == "gpu0"][0] or 1 << 30)
    assert at[0] > 2 * at[1] > 0, "from %s tokens on" % at

def case_42_experts_on_a_card_leave_ram():
    """KT#2084: experts that are on the card are still held in RAM."""
    run("plan", "-m", TINY, "--exact", *sims(1), "-ot", "blk=CPU", "-o", "p42.json")
    with open("p42.json") as f:
        j = json.load(f)
    j["placement"] += [{"layer": l, "experts": "0-2", "device": "sim0"} for l in range(4)]
    write("q42.json", j)
    held = []
    for name in "p42.json", "q42.json":
        p = tokens(*sims(1), "--plan", name, "-v")
        assert p.stdout == tokens().stdout
        held.append({d: int(re.search(r"^%s +weights +(\d+) +\1$" % d, p.stderr, re.M)[1]) for d in ("cpu0", "sim0")
                     if re.search("^%s +weights" % d, p.stderr, re.M)})
    granule = 65536
    assert 0 < held[1]["sim0"] and held[0]["cpu0"] - held[1]["cpu0"] >= held[1]["sim0"] - 2 * granule, held

# ---- a projector's file: metadata and no tensors ----------------------------------------------------------

def write_projector(path, kind):
    def text(s):
        return len(s).to_bytes(8, "little") + s.encode()
    pairs = [("general.architecture", "clip"), ("clip.projector_type", kind)]
    with open(path, "wb") as f:
        f.write(b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + len(pairs).to_bytes(8, "little"))
        for k, v in pairs:
            f.write(text(k) + (8).to_bytes(4, "little") + text(v))

def main():
    global PROGRAM
    PROGRAM, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, f in sorted(globals().items()):
            if not name.startswith("case_") or (only and not any(o in name for o in only)):
                continue
            start = time.monotonic()
            try:
                f()
                print("ok    %s (%.1f s)" % (name[5:], time.monotonic() - start))
            except (AssertionError, KeyError, IndexError, subprocess.TimeoutExpired) as e:
                failed += 1
                print("FAIL  %s: %s: %s\n      %s" % (name[5:], type(e).__name__, e, f.__doc__))
        os.chdir("/")
    sys.exit(failed != 0)

main()
