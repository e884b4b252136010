#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What golden files cannot hold: signals, closed pipes, terminals, JSON lines, memory seen from outside.

  behaviour.py BALLAST MODEL [WORD]     only tests whose name contains WORD
"""
import fcntl, hashlib, json, os, pty, re, select, shutil, signal, struct, subprocess, sys, tempfile, termios, time

BALLAST, MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
PROMPT = ["-m", MODEL, "-p", "Once upon a time"]
SANITIZED = b"__asan_init" in open(BALLAST, "rb").read() or b"__tsan_init" in open(BALLAST, "rb").read()

class Skip(Exception):
    pass

def check(good, what):
    if not good:
        raise AssertionError(what)

def run(*args, **kw):
    return subprocess.run([BALLAST, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60, **kw)

# ---- signals and pipes -------------------------------------------------------------------------------------

class Endless:
    """A run that cannot end by itself before it is stopped: its output pipe holds one page, and nobody reads on."""
    def __init__(self, ctx="2048"):
        r, w = os.pipe()
        fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 4096)
        self.p = subprocess.Popen([BALLAST, "run", *PROMPT, "-c", ctx, "--progress", "none"],
                                  stdin=subprocess.DEVNULL, stdout=w, stderr=subprocess.PIPE)
        os.close(w)
        self.out = os.fdopen(r, "rb", buffering=0)
        self.first = self.out.read(1)

    def fill_pipe(self):
        held, since = -1, time.monotonic()
        while time.monotonic() - since < 0.5:
            now = int.from_bytes(fcntl.ioctl(self.out, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
            if now != held:
                held, since = now, time.monotonic()
            time.sleep(0.01)

    def finish(self):
        rest = self.out.read()
        while rest and (more := self.out.read()):
            rest += more
        err = self.p.stderr.read().decode()
        return self.p.wait(timeout=30), self.first + rest, err

def stops_by(sig, code):
    e = Endless()
    e.p.send_signal(sig)
    got, out, err = e.finish()
    check(got == code, "exit code %d, expected %d; %s" % (got, code, err))
    check(len(out) >= 1, "no text before the signal")
    check("stopped: interrupted" in err, "no line about the interruption: %r" % err)
    check(not re.search("^ballast run:", err, re.M), "an error line: %r" % err)

def test_interrupt_stops_after_the_token():
    stops_by(signal.SIGINT, 130)

def test_terminate_stops_after_the_token():
    stops_by(signal.SIGTERM, 143)

def test_second_interrupt_kills():
    e = Endless(ctx="20000")
    e.fill_pipe()
    e.p.send_signal(signal.SIGINT)
    time.sleep(0.2)
    check(e.p.poll() is None, "ended although its output was not read")
    e.p.send_signal(signal.SIGINT)
    check(e.p.wait(timeout=30) == -signal.SIGINT, "the second signal did not kill")

def test_logits_interrupted_leaves_no_file():
    with tempfile.TemporaryDirectory() as tmp:
        p = subprocess.Popen([BALLAST, "logits", "-m", MODEL, "--ids", " ".join(["403"] * 2000), "--chunks", "1",
                              "--exact", "-t", "1", "-o", tmp + "/out.f32"], stderr=subprocess.PIPE)
        while p.poll() is None and not os.listdir(tmp):
            time.sleep(0.001)
        p.send_signal(signal.SIGINT)
        code = p.wait(timeout=30)
        check(code == 130, "exit code %d" % code)
        check(not os.listdir(tmp), "left behind: %s" % os.listdir(tmp))

def test_interrupt_within_a_step():
    """One step that would take minutes."""
    p = subprocess.Popen([BALLAST, "logits", "-m", MODEL, "--ids", " ".join(["403"] * 30000), "-c", "30000", "-b", "30000",
                          "-ub", "30000", "--exact", "-t", "1", "--greedy", "1", "-v"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    while p.poll() is None and b"loaded" not in p.stderr.readline():
        pass
    time.sleep(1)
    check(p.poll() is None, "ended before it was interrupted")
    since = time.monotonic()
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    took = time.monotonic() - since
    check(p.returncode == 130, "exit code %d; %r" % (p.returncode, err))
    check(out == b"" and b"ballast logits:" not in err, "said %r, %r" % (out, err))
    check(took < 5, "it took %.1f s" % took)

def test_closed_pipe_is_quiet():
    e = Endless()
    e.out.close()
    err = e.p.stderr.read().decode()
    code = e.p.wait(timeout=30)
    check(code == 1, "exit code %d" % code)
    check(err == "", "said %r" % err)

# ---- progress ----------------------------------------------------------------------------------------------

def test_json_lines():
    p = run("run", *PROMPT, "-n", "3", "-v", "--progress", "json", "--no-mmap")
    check(p.returncode == 0, p.stderr)
    lines = [json.loads(line) for line in p.stderr.decode().splitlines()]
    events = [l["event"] for l in lines]
    check(events.count("loaded") == 1 and events.count("done") == 1, "events %s" % events)
    loaded = lines[events.index("loaded")]
    check(loaded["done_bytes"] == loaded["total_bytes"] > 500000, loaded)
    done = lines[events.index("done")]
    check(done["generated_tokens"] == 3 and done["stopped"] == "-n reached", done)

def test_json_errors():
    p = run("run", "-m", "missing.gguf", "-p", "x", "--progress", "json")
    lines = [json.loads(line) for line in p.stderr.decode().splitlines()]
    check(p.returncode == 4 and [l["event"] for l in lines] == ["error"], lines)

def on_terminal(args, columns=100, **env):
    """Standard error as a terminal shows it."""
    try:
        master, slave = pty.openpty()
    except OSError as e:
        raise Skip("no terminals here: %s" % e)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    e = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    p = subprocess.Popen([BALLAST, *args], env=dict(e, **env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=slave)
    os.close(slave)
    out = b""
    while select.select([master], [], [], 60)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:                    # EIO: the other side is closed
            break
        out += data
    os.close(master)
    check(p.wait(timeout=30) == 0, out)
    return out.decode()

BAR = re.compile(r"\rLoading +\d+% \[.*\] [\d.]+ k?M?B of [\d.]+ kB  [\d.]+ GB/s  ETA \d+:\d\d\x1b\[K")

def test_terminal_shows_a_bar():
    out = on_terminal(["run", *PROMPT, "-n", "1", "--no-mmap"], TERM="xterm")
    check(BAR.search(out), "no bar in %r" % out)
    check("\x1b[32m" in out, "no colour in %r" % out)
    check("\r\x1b[Kloaded" in out, "the bar stays: %r" % out)
    check(all(len(re.sub("\x1b\\[[0-9;]*[mK]", "", l)) < 100 for l in re.split("[\r\n]+", out)), "wider than the screen")

def test_terminal_cuts_the_bar():
    for columns in 1, 8, 30, 60:
        out = on_terminal(["run", *PROMPT, "-n", "1", "--no-mmap"], columns=columns, TERM="xterm")
        bars = [re.sub("\x1b\\[[0-9;]*[mK]", "", l) for l in re.split("[\r\n]+", out) if l.startswith("Loading"[:columns - 1])]
        bars = [b for b in bars if not b.startswith("loaded")]
        check(columns == 1 or "Loading"[:columns - 1] in out, "no bar in %r" % out)
        check(all(len(b) < columns or b.startswith(("prompt", "loaded")) for b in bars), "wider than %d: %r" % (columns, bars))

def test_json_usage_errors():
    for args in (["run", "--progress", "json"], ["run", "-m", MODEL, "-p", "x", "-b", "1", "-ub", "2", "--progress=json"],
                 ["logits", "-m", MODEL, "--ids", "1", "--progress", "json"]):
        p = run(*args)
        lines = [json.loads(line) for line in p.stderr.decode().splitlines()]
        check(p.returncode == 2 and [l["event"] for l in lines] == ["error"], (args, lines))

def test_no_color():
    out = on_terminal(["run", *PROMPT, "-n", "1", "--no-mmap"], TERM="xterm", NO_COLOR="1")
    check(BAR.search(out) and "\x1b[32m" not in out, repr(out))

def test_dumb_terminal():
    out = on_terminal(["run", *PROMPT, "-n", "1", "--no-mmap"], TERM="dumb")
    check("\x1b" not in out and "Loading" not in out and "loaded" in out, repr(out))

def test_no_terminal_no_control():
    p = run("run", *PROMPT, "-n", "1", "--no-mmap", env=dict(os.environ, TERM="xterm"))
    check(b"\x1b" not in p.stderr and b"\r" not in p.stderr and b"loaded" in p.stderr, p.stderr)

# ---- malformed files ---------------------------------------------------------------------------------------

def refused(path, verb):
    """Exit 4, one line, little memory."""
    args = [BALLAST, verb, "-m", path] + ([] if verb == "info" else ["-p", "x"])
    p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = p.stdout.read(), p.stderr.read().decode()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    check(p.returncode == 4, "%s: exit code %d: %s" % (args[1:], p.returncode, err))
    check(out == b"" and err.count("\n") == 1 and err.startswith("ballast %s: " % verb), (out, err))
    check(SANITIZED or usage.ru_maxrss < 64 << 10, "%s: %d KiB of memory" % (err, usage.ru_maxrss))
    return err

def test_every_truncation_is_refused():
    data = open(MODEL, "rb").read()
    header = 12832 - 32 # and padding
    with tempfile.TemporaryDirectory() as tmp:
        path = tmp + "/cut.gguf"
        for i in range(50):
            verb = ("info", "tokenize", "run")[i % 3]
            n = (header if verb == "info" else len(data)) * i // 50 - (i % 3 if i else 0)
            with open(path, "wb") as f:
                f.write(data[:n])
            err = refused(path, verb)
            check("cut.gguf" in err and (str(n) in err or n == 0), "does not say what and where: %r" % err)

def text(s):
    return struct.pack("<Q", len(s)) + s

def header(n_tensors=0, n_kv=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv)

def tensor(name=b"t", dims=(32,), kind=0, offset=0):
    return text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + \
        struct.pack("<IQ", kind, offset)

HOSTILE = {
    "version": header(version=9),
    "byte order": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "tensor count": header(n_tensors=1 << 60),
    "key count": header(n_kv=(1 << 63) + 1),
    "string of 1 GiB": header(n_kv=1) + text(b"general.name") + struct.pack("<IQ", 8, 1 << 30) + b"abc",
    "string that wraps": header(n_kv=1) + text(b"general.name") + struct.pack("<IQ", 8, (1 << 64) - 8) + b"abc",
    "array that wraps": header(n_kv=1) + text(b"a") + struct.pack("<IIQ", 9, 4, 1 << 62) + b"abc",
    "array of arrays": header(n_kv=1) + text(b"a") + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
    "value type": header(n_kv=1) + text(b"a") + struct.pack("<I", 13) + bytes(64),
    "bool of 2": header(n_kv=1) + text(b"a") + struct.pack("<IB", 7, 2) + bytes(64),
    "same key twice": header(n_kv=2) + 2 * (text(b"a") + struct.pack("<II", 4, 1)),
    "alignment": header(n_kv=1) + text(b"general.alignment") + struct.pack("<II", 4, 1 << 30) + bytes(64),
    "five dimensions": header(n_tensors=1) + tensor(dims=(1,) * 5) + bytes(256),
    "dimension of 0": header(n_tensors=1) + tensor(dims=(0,)) + bytes(256),
    "dimensions that wrap": header(n_tensors=1) + tensor(dims=((1 << 42) + 1, 1 << 42)) + bytes(256),
    "bytes that wrap": header(n_tensors=1) + tensor(dims=((1 << 63) - 1, 2)) + bytes(256),
    "negative type": header(n_tensors=1) + tensor(kind=0xffffffff) + bytes(256),
    "half a block": header(n_tensors=1) + tensor(dims=(33,), kind=2) + bytes(256),
    "offset that wraps": header(n_tensors=1) + tensor(offset=(1 << 64) - 32) + bytes(256),
    "same name twice": header(n_tensors=2) + tensor() + tensor(offset=128) + bytes(512),
    "tensors that overlap": header(n_tensors=2) + tensor(dims=(64,)) + tensor(b"u", offset=32) + bytes(512),
}

def test_hostile_headers_are_refused():
    with tempfile.TemporaryDirectory() as tmp:
        for name, data in HOSTILE.items():
            path = tmp + "/hostile.gguf"
            with open(path, "wb") as f:
                f.write(data)
            try:
                refused(path, "info")
            except AssertionError as e:
                raise AssertionError("%s: %s" % (name, e))

def test_unreadable_file_is_named():
    if os.getuid():
        raise Skip("only root can become somebody who may not read")
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copy(MODEL, tmp + "/secret.gguf")
        os.chmod(tmp + "/secret.gguf", 0)
        os.chmod(tmp, 0o755)
        try:
            p = run("info", "-m", tmp + "/secret.gguf", user=65534)
        except PermissionError:
            raise Skip("the program lies where nobody else may run it")
        check(p.returncode == 4 and b"secret.gguf" in p.stderr and b"Permission denied" in p.stderr, p.stderr)

# ---- memory ------------------------------------------------------------------------------------------------

def ledger(text):
    """{purpose: (planned, measured)} of run -v."""
    rows = re.findall(r"^(\S+) +(\S*) +(\d+) +(\d+)$", text, re.M)
    return {purpose or device: (int(p), int(m)) for device, purpose, p, m in rows}

def test_memory_planned_and_measured():
    for options in [], ["--no-mmap"], ["-c", "300", "-ub", "16"], ["-ctk", "q8_0", "-ctv", "q8_0"]:
        rows = ledger(run("run", *PROMPT, "-n", "4", "-v", *options).stderr.decode())
        check("weights" in rows and "state" in rows, rows)
        for purpose, (planned, measured) in rows.items():
            check(measured <= planned, "%s %s: measured %d above planned %d" % (options, purpose, measured, planned))
            if purpose not in ("host", "total"):
                check(measured == planned, "%s %s: %d measured, %d planned" % (options, purpose, measured, planned))

def traced(options):
    """Bytes mapped from the model, private bytes obtained otherwise, and the ledger, of one run."""
    if not shutil.which("strace"):
        raise Skip("no strace here")
    if SANITIZED:
        raise Skip("a sanitizer's own memory would be counted")
    with tempfile.TemporaryDirectory() as tmp:
        log = tmp + "/log"
        p = subprocess.run(["strace", "-f", "-y", "-qq", "-e", "trace=mmap,munmap,brk,mprotect", "-o", log, BALLAST, "run",
                            *PROMPT, "-n", "4", "-v", *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, timeout=60)
        if p.returncode and b"ptrace" in p.stderr:
            raise Skip("strace may not trace here")
        check(p.returncode == 0, p.stderr)
        mapped = private = 0
        first_brk = last_brk = None
        for line in open(log):
            if m := re.search(r"mmap\(\S+ (\d+), (\S+), (\S+), (\S+), \S+\) = 0x", line):
                if MODEL in m[4]:
                    mapped += int(m[1])
                elif "MAP_ANONYMOUS" in m[3] and "PROT_WRITE" in m[2] and "MAP_STACK" not in m[3]:
                    private += int(m[1])
            elif m := re.search(r"brk\(\S+\) += 0x([0-9a-f]+)", line):
                last_brk = int(m[1], 16)
                first_brk = first_brk or last_brk
        private += last_brk - first_brk
        return mapped, private, ledger(p.stderr.decode())

SLACK = 4 << 20   # the C library's and libraries' own heap, measured at 1.5 MiB

def test_strace_agrees_mapped():
    mapped, private, rows = traced([])
    size = os.path.getsize(MODEL)
    check(size <= mapped < size + 4096 * 2, "%d bytes of the model mapped, the file has %d" % (mapped, size))
    own = rows["total"][1] - rows["weights"][1]
    check(own <= private <= own + SLACK, "%d private bytes obtained, the ledger has %d" % (private, own))

def test_strace_agrees_read():
    _, private, rows = traced(["--no-mmap", "-c", "20000"])
    total = rows["total"][1]
    check(total <= private <= total + SLACK, "%d private bytes obtained, the ledger has %d" % (private, total))

# ---- chat --------------------------------------------------------------------------------------------------

TEMPLATE = "{% for m in messages %}<s>[{{ m.role }}] {{ m.content }}</s>{% endfor %}[me] "
DIM, BRIGHT = b"\x1b[2m", b"\x1b[22m"

class Chat:
    """run -i with all three streams on one terminal."""
    def __init__(self, *options, end="", model=MODEL, **env):
        try:
            self.master, slave = pty.openpty()
        except OSError as e:
            raise Skip("no terminals here: %s" % e)
        self.tmp = tempfile.TemporaryDirectory()
        with open(self.tmp.name + "/t.jinja", "w") as f:
            f.write(TEMPLATE + end)
        e = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        self.p = subprocess.Popen([BALLAST, "run", "-m", model, "-i", "--chat-template", self.tmp.name + "/t.jinja",
                                   "--progress", "none", *options], env=dict(e, TERM="xterm", **env), stdin=slave,
                                  stdout=slave, stderr=slave, preexec_fn=self.own_terminal)
        os.close(slave)
        self.seen = b""

    @staticmethod
    def own_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def until(self, what):
        """Reads on to `what`, which is taken off what has been seen; what came before it."""
        while what not in self.seen:
            check(select.select([self.master], [], [], 30)[0], "%r does not come: %r" % (what, self.seen))
            try:
                self.seen += os.read(self.master, 4096)
            except OSError:
                raise AssertionError("ended before %r: %r" % (what, self.seen))
        before, _, self.seen = self.seen.partition(what)
        return before

    def type(self, text):
        os.write(self.master, text)

    def finish(self):
        try:
            while data := os.read(self.master, 4096):
                self.seen += data
        except OSError:                    # EIO: the other side is closed
            pass
        os.close(self.master)
        self.tmp.cleanup()
        return self.p.wait(timeout=30)

def test_chat_end_of_input():
    c = Chat("-n", "4")
    c.until(b"> ")
    c.type(b"Once\n")
    c.until(b"Once\r\n")                   # the echo
    check(c.until(b"\r\n> ") != b"", "no answer")
    c.type(b"a\\\n")
    c.until(b"\r\n. ")
    c.type(b"b\n")
    c.until(b"\r\n> ")
    c.type(b"\x04")
    code = c.finish()
    check(code == 0, "exit code %d" % code)
    check(c.seen.endswith(b"\r\n"), "the shell's prompt would not begin a line: %r" % c.seen)

def test_chat_interrupted_answer():
    c = Chat("-c", "100000")               # nothing else ends the answer soon
    c.until(b"> ")
    for _ in range(2):
        c.type(b"Once\n")
        c.until(b"Once\r\n")
        while not c.seen:
            c.seen += os.read(c.master, 1)
        c.type(b"\x03")
        c.until(b"\r\n> ")
    c.type(b"/quit\n")
    code = c.finish()
    check(code == 0, "exit code %d: %r" % (code, c.seen))

def test_chat_interrupted_prompt():
    for lines in b"", b"Once\n":           # the first prompt and a later one
        c = Chat("-n", "4")
        c.until(b"> ")
        if lines:
            c.type(lines)
            c.until(b"\r\n> ")
        time.sleep(0.1)                    # the prompt stands before the program reads
        c.type(b"\x03")
        code = c.finish()
        check(code == -signal.SIGINT, "exit code %d" % code)

def test_chat_model_cut_short():
    with tempfile.TemporaryDirectory() as tmp:
        model = shutil.copy(MODEL, tmp + "/m.gguf")
        c = Chat("-n", "4", model=model)
        c.until(b"> ")
        c.type(b"Once\n")
        c.until(b"Once\r\n")
        c.until(b"\r\n> ")
        os.truncate(model, 20000)
        c.type(b"upon\n")
        code = c.finish()
        check(code == 1, "exit code %d: %r" % (code, c.seen))
        check(b"m.gguf: the file has 20000 bytes now, it had" in c.seen, c.seen)

def test_chat_terminated():
    c = Chat("-c", "100000")
    c.until(b"> ")
    c.type(b"Once\n")
    c.until(b"Once\r\n")
    while not c.seen:
        c.seen += os.read(c.master, 1)
    c.p.send_signal(signal.SIGTERM)
    code = c.finish()
    check(code == 143, "exit code %d" % code)
    check(c.seen.endswith(b"\r\n"), "the line is not ended: %r" % c.seen[-100:])

def reasoning(**env):
    c = Chat("-n", "4", end="<think>\n", **env)
    c.until(b"> ")
    c.type(b"Once\n")
    c.until(b"Once\r\n")
    shown = c.until(b"\r\n> ")
    c.type(b"\x04")
    check(c.finish() == 0, c.seen)
    return shown

def test_chat_reasoning_is_dim():
    shown = reasoning()
    check(shown.startswith(DIM) and shown.endswith(BRIGHT), repr(shown))
    check(shown.count(b"\x1b") == 2 and len(shown) > len(DIM + BRIGHT), repr(shown))
    plain = reasoning(NO_COLOR="1")
    check(b"<think>\r\n" + shown[len(DIM):-len(BRIGHT)] == plain, (shown, plain))

def test_run_dims_reasoning():
    with tempfile.TemporaryDirectory() as tmp:
        with open(tmp + "/t.jinja", "w") as f:
            f.write(TEMPLATE + "<think>")
        try:
            master, slave = pty.openpty()
        except OSError as e:
            raise Skip("no terminals here: %s" % e)
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        p = subprocess.run([BALLAST, "run", *PROMPT, "--chat-template", tmp + "/t.jinja", "-n", "4"], stdout=slave,
                           stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, env=dict(env, TERM="xterm"))
        os.close(slave)
        shown = os.read(master, 4096)
        os.close(master)
        check(p.returncode == 0, p.stderr)
        check(shown.startswith(DIM) and shown.endswith(BRIGHT + b"\r\n") and len(shown) > 12, repr(shown))

def test_chat_to_a_pipe_is_plain():
    with tempfile.TemporaryDirectory() as tmp:
        with open(tmp + "/t.jinja", "w") as f:
            f.write(TEMPLATE + "<think>")
        p = subprocess.run([BALLAST, "run", "-m", MODEL, "-i", "--chat-template", tmp + "/t.jinja", "-n", "4"],
                           input=b"Once\n", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                           env=dict(os.environ, TERM="xterm"))
        check(p.returncode == 0 and b"\x1b" not in p.stdout + p.stderr, p)
        check(p.stdout.startswith(b"<think>\n") and len(p.stdout) > 9, p.stdout)
        check(b"> " not in p.stderr, p.stderr)

def test_chat_closed_pipe_is_quiet():
    with tempfile.TemporaryDirectory() as tmp:
        with open(tmp + "/t.jinja", "w") as f:
            f.write(TEMPLATE)
        p = subprocess.Popen([BALLAST, "run", "-m", MODEL, "-i", "--chat-template", tmp + "/t.jinja", "--progress",
                              "none"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b"Once\nmore\n")
        p.stdin.flush()
        p.stdout.read(1)
        p.stdout.close()
        code = p.wait(timeout=30)
        err = p.stderr.read()
        p.stdin.close()
        check(code == 1 and err == b"", (code, err))

# ---- quickstart, in a tree of its own with everything around it made up ------------------------------------

class Quickstart:
    def __init__(self, tmp):
        here = os.path.dirname(os.path.abspath(__file__))
        self.tmp, self.script = tmp, tmp + "/tools/quickstart.sh"
        for d in "tools/common", "build", "bin", "cache/ballast":
            os.makedirs(tmp + "/" + d)
        shutil.copy(here + "/../../tools/quickstart.sh", self.script)
        self.write("tools/common/need.sh", 'say() { echo "$*" >&2; }; need_packages() { :; }; need_install() { :; }\n'
                                           "need_build_packages() { :; }\n")
        self.write("bin/cmake", "#!/bin/sh\n")
        self.write("bin/python3", '#!/bin/sh\n[ "$3" = --version ]\n')      # nothing can be fetched
        self.write("build/ballast", '#!/bin/sh\necho "$@"\n')
        self.model = re.search(r"MODEL_FILE=(\S+)", open(self.script).read())[1]

    def write(self, name, text):
        with open(self.tmp + "/" + name, "w") as f:
            f.write(text)
        os.chmod(self.tmp + "/" + name, 0o755)

    def expect_sha256(self, text):
        digest = hashlib.sha256(text.encode()).hexdigest()
        script = re.sub(r"MODEL_SHA256=\S+", "MODEL_SHA256=" + digest, open(self.script).read())
        self.write("tools/quickstart.sh", script)

    def run(self, **env):
        p = subprocess.run(["sh", self.script, "Hello"], env=dict(env, PATH=self.tmp + "/bin:" + os.environ["PATH"]),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        return p.returncode, p.stdout.decode(), p.stderr.decode()

def test_quickstart_without_home():
    with tempfile.TemporaryDirectory() as tmp:
        q = Quickstart(tmp)
        code, out, err = q.run(BALLAST_MODEL="/my model.gguf")
        check(code == 0 and out.startswith("run -m /my model.gguf ") and not err, (code, out, err))
        code, out, err = q.run()
        check(code != 0 and "HOME" in err and "BALLAST_MODEL" in err and not out, (code, out, err))

def test_quickstart_checks_its_cache():
    with tempfile.TemporaryDirectory() as tmp:
        q = Quickstart(tmp)
        model = "cache/ballast/" + q.model
        q.expect_sha256("good")
        q.write(model, "good")
        code, out, err = q.run(XDG_CACHE_HOME=tmp + "/cache")
        check(code == 0 and out.startswith("run -m %s/%s " % (tmp, model)) and not err, (code, out, err))
        q.write(model, "bad!")
        code, out, err = q.run(XDG_CACHE_HOME=tmp + "/cache")
        check(code == 1 and not out and "is not the expected file any more" in err, (code, out, err))

def main():
    word = sys.argv[3] if len(sys.argv) > 3 else ""
    failed = 0
    for name, test in sorted(globals().items()):
        if not name.startswith("test_") or word not in name:
            continue
        try:
            test()
            print("ok       %s" % name[5:])
        except Skip as s:
            print("skipped  %s: %s" % (name[5:], s))
        except Exception as e:
            failed += 1
            print("FAILED   %s: %s: %s" % (name[5:], type(e).__name__, e))
    return failed != 0

if __name__ == "__main__":
    sys.exit(main())
