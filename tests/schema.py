#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds JSON files against a schema of configs/schema.

  schema.py SCHEMA FILE...       exit 1 and a line per fault; 77 when python's jsonschema is not there
  schema.py SCHEMA -- COMMAND    what the command prints, e.g. ballast probe --quick --format json; with {} in it what it
                                 writes to the file that stands there
"""
import json, os, subprocess, sys, tempfile

try:
    import jsonschema
except ImportError:
    print("skipped: no jsonschema for this python")
    sys.exit(77)

def output_of(command):
    if "{}" not in command:
        return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "out")
        subprocess.run([path if a == "{}" else a for a in command], stdout=subprocess.DEVNULL, check=True)
        return open(path, "rb").read()

def main():
    schema = json.load(open(sys.argv[1], encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    check = jsonschema.Draft7Validator(schema)
    if sys.argv[2] == "--":
        texts = [(sys.argv[3], output_of(sys.argv[3:]))]
    else:
        texts = [(path, open(path, encoding="utf-8").read()) for path in sys.argv[2:]]
    bad = 0
    for name, text in texts:
        for e in check.iter_errors(json.loads(text)):
            bad += 1
            print("%s: %s: %s" % (name, "/".join(str(p) for p in e.absolute_path), e.message[:200]))
    # A schema that lets everything pass would show nothing.
    format_of = next(iter(json.loads(texts[0][1])))
    if not bad and check.is_valid(dict(json.loads(texts[0][1]), **{format_of: 2})):
        sys.exit("%s: takes a format that does not exist" % sys.argv[1])
    print("%d files hold" % len(texts) if not bad else "%d faults" % bad)
    return 1 if bad else 0

sys.exit(main())
