#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the commands of *.cases files and compares what they print and return.

  golden.py BALLAST MODEL [--update] [--only WORD] FILE...

A case is a block of lines; blocks are separated by empty lines:

  # comment
  $ ballast run -p x -f y        one sh command; in an empty folder that holds model.gguf; $TESTS is
                                 this folder, ballast the program under test
  = 2                            exit code
  > text                         a line of standard output, exactly
  ! text                         a line of standard error, exactly
  >~ regex   !~ regex            a line that matches the regular expression in full
  >*         !*                  any lines, to the end of that stream

A case that says nothing about a stream expects it empty. --update rewrites exact lines and codes of failing
cases with what came; lines with ~ or * stay, so a case that has any of them must be mended by hand.
"""
import argparse, os, re, shutil, subprocess, sys, tempfile

MARKS = {">": "out", "!": "err"}

class Case:
    def __init__(self, lines, where):
        self.lines, self.where = lines, where
        self.command, self.code, self.want = None, 0, {"out": [], "err": []}
        for line in lines:
            head, _, rest = line.partition(" ")
            if head == "$":
                self.command = rest
            elif head == "=":
                self.code = int(rest)
            elif head and head[0] in MARKS and head[1:] in ("", "~", "*"):
                self.want[MARKS[head[0]]].append((head[1:], rest))
            elif head != "#":
                sys.exit("%s: cannot read %r" % (where, line))

def read_cases(path):
    cases, block, start = [], [], 1
    for i, line in enumerate(open(path, encoding="utf-8").read().split("\n") + [""], 1):
        if line.strip():
            block.append(line)
            continue
        if block:
            cases.append(Case(block, "%s:%d" % (os.path.basename(path), start)))
        block, start = [], i + 1
    return cases

def compare(want, text):
    """None, or what differs."""
    got = text.split("\n")
    if got[-1] == "":
        got.pop()
    for i, (kind, line) in enumerate(want):
        if kind == "*":
            return None
        if i >= len(got):
            return "misses the line %r" % line
        if kind == "~" and not re.fullmatch(line, got[i]) or kind == "" and line != got[i]:
            return "has the line %r, expected %r" % (got[i], line)
    if len(got) > len(want):
        return "has one line more: %r" % got[len(want)]
    return None

def run(case, env):
    p = subprocess.run(["sh", "-c", case.command], env=env, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, cwd=env["TMP"])
    out = {"out": p.stdout.decode("utf-8", "backslashreplace"),
           "err": p.stderr.decode("utf-8", "backslashreplace")}
    wrong = []
    if p.returncode != case.code:
        wrong.append("exit code is %d, expected %d" % (p.returncode, case.code))
    for stream, name in (("out", "stdout"), ("err", "stderr")):
        difference = compare(case.want[stream], out[stream])
        if difference:
            wrong.append("%s %s" % (name, difference))
    return wrong, p.returncode, out

def rewritten(case, code, out):
    kept = [l for l in case.lines if l[0] in "#$"]
    lines = kept + (["= %d" % code] if code else [])
    for mark, stream in MARKS.items():
        text = out[stream][:-1] if out[stream].endswith("\n") else out[stream]
        lines += [(mark + " " + l) for l in text.split("\n")] if text else []
    return lines

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("ballast")
    ap.add_argument("model")
    ap.add_argument("files", nargs="+")
    ap.add_argument("--update", action="store_true")
    ap.add_argument("--only", default="", help="cases whose command contains this")
    a = ap.parse_args()
    passed = failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        os.mkdir(tmp + "/bin")
        os.symlink(os.path.abspath(a.ballast), tmp + "/bin/ballast")
        shutil.copy(a.model, tmp + "/model.gguf")
        env = dict(os.environ, PATH=tmp + "/bin:" + os.environ["PATH"], TMP=tmp, LC_ALL="C",
                   TESTS=os.path.dirname(os.path.abspath(__file__)))
        env.pop("NO_COLOR", None)
        for path in a.files:
            cases = read_cases(path)
            for case in cases:
                if a.only not in case.command:
                    continue
                wrong, code, out = run(case, env)
                exact = all(kind == "" for w in case.want.values() for kind, _ in w)
                if wrong and a.update and exact:
                    case.lines = rewritten(case, code, out)
                    print("updated %s: %s" % (case.where, case.command))
                elif wrong:
                    failed += 1
                    print("FAILED %s: %s" % (case.where, case.command))
                    print("".join("    %s\n" % w for w in wrong), end="")
                else:
                    passed += 1
            if a.update:
                with open(path, "w", encoding="utf-8") as f:
                    f.write("\n\n".join("\n".join(c.lines) for c in cases) + "\n")
    print("%d cases agree, %d do not" % (passed, failed))
    return failed != 0

if __name__ == "__main__":
    sys.exit(main())
