#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes cases.json: small templates rendered by jinja2 (pip install jinja2) as transformers sets it up.

make.py            rewrites cases.json beside it
make.py --check    exit 1 if cases.json is not what would be written
"""
import copy, datetime, json, os, sys
import jinja2, jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 11, 29, 12, 34, 56)

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi \n"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHello!"}, {"role": "user", "content": "Sum 2, 3"}]
CALLS = [{"role": "user", "content": "Sum 2, 3"},
         {"role": "assistant", "content": None,
          "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3.5}}}]},
         {"role": "tool", "tool_call_id": "c1", "content": "5.5"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> \"numbers\" & more",
          "parameters": {"type": "object", "required": ["a", "b"],
                         "properties": {"a": {"type": "integer"}, "b": {"type": "number", "default": 0.5}}}}}]
ROWS = [{"n": "pear", "p": 3, "ok": True}, {"n": "Apple", "p": 1}, {"n": "fig", "p": 2, "ok": False}]

# name, template, variables
CASES = [
    # text and tags
    ("text", "plain\ntext\n\n", {}),
    ("crlf", "a\r\nb\rc{{ 1 }}\r\n", {}),
    ("trim-blocks", "{% if true %}\n  x\n{% endif %}\n\ny", {}),
    ("lstrip-blocks", "a\n   {% if true %}b{% endif %}\n\t{# c #}\n  {{ 1 }}", {}),
    ("minus", "a \n {%- if true -%} \n b \n {%- endif -%} \n c", {}),
    ("plus", "a\n  {%+ if true +%}\n  b{% endif %}", {}),
    ("minus-print", "a  {{- 1 -}}  b", {}),
    ("minus-unicode-space", "a\u00a0\u2003{{- 1 -}}\u3000b", {}),
    ("comment", "a{# {{ no }} {% if %} #}b{#- x -#}  c", {}),
    ("comment-lines", "  {# a #}\n  {# b #}\nc", {}),
    ("raw", "{% raw %}\n{{ x }}{% endif %}{% endraw %}y", {}),
    ("raw-minus", " {%- raw -%} {{ x }} {%- endraw -%} y", {}),
    ("lone-braces", "{ } {x} }} %} #} { {", {}),
    ("braces-in-string", "{{ '}}' }}{{ \"%}\" }}", {}),
    ("dict-before-end", "{{ {'a': {'b': 1}} }}", {}),
    ("string-lines", "{{ 'a\n  b' }}", {}),
    # literals
    ("numbers", "{{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1.50 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 2e20 }}", {}),
    ("large-ints", "{{ 9223372036854775807 }} {{ -9223372036854775807 }} {{ 4611686018427387904 + 1 }}", {}),
    ("floats", "{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 1e16 }} {{ 123456789.125 }} {{ 1e-5 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}", {}),
    ("escapes", "{{ 'a\\tb\\\\c\\'d\\x41\\u00e9\\101\\q' }}", {}),
    ("adjacent-strings", "{{ 'a' 'b' \"c\" }}", {}),
    ("names", "{{ true }}{{ False }}{{ none }}{{ True is true }}", {}),
    ("lists", "{{ [1, [2, 'x'], (), (3,), {}] }}", {}),
    ("trailing-commas", "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1,) }}", {}),
    ("repr", "{{ ['it\\'s', '\"', '\\n\\t\\x01', 'é\\u200b\\xa0'] }}", {}),
    ("keys-equal", "{{ {1: 'a', true: 'b', 1.0: 'c'} }}", {}),
    # operators
    ("precedence", "{{ 1 + 2 * 3 - 4 // 3 }} {{ 'a' ~ 1 + 2 if false else 'b' ~ 2 * 3 }}", {}),
    ("tilde-tighter", "{{ 'x' + 1 ~ 2 }}", {}),
    ("power-left", "{{ 2 ** 3 ** 2 }} {{ 2 ** -1 }} {{ -2 ** 2 }}", {}),
    ("floor", "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }}", {}),
    ("mixed-numbers", "{{ 1 + true }} {{ 2 * 1.5 }} {{ 4 / 2 }} {{ 1 == 1.0 }} {{ true == 1 }}", {}),
    ("shared-prefix", "{% set a = 'x' ~ 1 %}{% set b = a + 'bb' %}{% set c = a + 'cc' %}{% set d = b[:3] + 'd' %}{{ a }} {{ b }} {{ c }} {{ d }} {{ b + b }} {{ a[1:] + a }}", {}),
    ("repeat", "{{ 'ab' * 3 }} {{ 2 * [1] }} {{ 'x' * 0 }}{{ (1, 2) * 2 }}", {}),
    ("chained", "{{ 1 < 2 <= 2 != 3 }} {{ 3 > 2 > 2 }}", {}),
    ("membership", "{{ 'b' in 'abc' }} {{ 2 not in [1, 2] }} {{ 'k' in {'k': 1} }} {{ not 1 in (1,) }}", {}),
    ("logic-values", "{{ 0 or 'x' }} {{ '' and 1 }}| {{ [] or {} or none }} {{ not '' }}", {}),
    ("compare-lists", "{{ [1, 2] < [1, 3] }} {{ [1] == [1.0] }} {{ {'a': [1]} == {'a': [1]} }}", {}),
    ("no-else", "[{{ 'x' if false }}]", {}),
    ("percent", "{{ '%s and %05.1f, %-4d|%x%%' % ('a', 2.25, 7, 255) }} {{ '%(k)s' % {'k': [1]} }}", {}),
    ("format", "{{ '{} {1} {0}'.format('a', 'b') if false else '{1}{0}'.format('a', 'b') }} {{ '{:>5}|{:<5}|{:^5}'.format(1, 'b', 'c') }} {{ '{x.y:.2f}'.format(x={'y': 1}) if false else '{:.2f}'.format(2) }}", {}),
    # access
    ("attribute", "{{ a.b.c }} {{ a['b'].c }} {{ a.zz }}|{{ a['zz'] }}|{{ a.b[0] }}|", {"a": {"b": {"c": 1}}}),
    ("index", "{{ l[0] }} {{ l[-1] }} {{ l[5] }}| {{ l.1 }} {{ 'héllo'[1] }} {{ 'héllo'[-4] }}", {"l": [1, 2]}),
    ("slices", "{{ l[1:] }} {{ l[:-1] }} {{ l[::2] }} {{ l[::-1] }} {{ l[-2:9] }} {{ l[3:1] }}", {"l": [0, 1, 2, 3]}),
    ("string-slices", "{{ s[1:4] }}|{{ s[::-1] }}|{{ s[-3:] }}|{{ s[::3] }}|{{ s[4:0:-2] }}", {"s": "aé漢🙂z!"}),
    ("method-before-key", "{{ d.items() | list }} {{ d['items'] }} {{ d.get('items') }}", {"d": {"items": 1}}),
    ("get", "{{ d.get('a') }} {{ d.get('b') }} {{ d.get('b', 2) }}", {"d": {"a": 1}}),
    ("views", "{{ d.keys() }} {{ d.values() }} {{ d.items() }}", {"d": {"b": 1, "a": [2]}}),
    # statements
    ("if", "{% if x > 2 %}a{% elif x > 1 %}b{% else %}c{% endif %}", {"x": 2}),
    ("for", "{% for x in l %}{{ loop.index0 }}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}", {"l": ["a", "b"]}),
    ("for-else", "{% for x in [] %}{{ x }}{% else %}none{% endfor %}", {}),
    ("for-unpack", "{% for k, (a, b) in [('x', (1, 2))] %}{{ k }}{{ a }}{{ b }}{% endfor %}", {}),
    ("for-dict", "{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", {"d": {"z": 1, "a": 2}}),
    ("for-filter", "{% for x in range(9) if x % 3 == 0 %}{{ loop.index }}:{{ x }}{{ '.' if loop.last else ',' }}{% endfor %}", {}),
    ("for-filter-length", "{% for x in [1, 2, 3] if x != 2 %}{{ loop.length }}{{ loop.revindex }}{% endfor %}", {}),
    ("for-neighbours", "{% for x in 'abc' %}[{{ loop.previtem }}{{ x }}{{ loop.nextitem }}]{% endfor %}", {}),
    ("for-nested", "{% for x in [1, 2] %}{% set o = loop %}{% for y in [3, 4] %}{{ o.index }}{{ loop.index }} {% endfor %}{% endfor %}", {}),
    ("for-recursive", "{% for n in t recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}", {"t": [{"v": 1, "c": [{"v": 2}, {"v": 3, "c": [{"v": 4}]}]}]}),
    ("break-continue", "{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}", {}),
    ("cycle", "{% for x in range(5) %}{{ loop.cycle('a', 'b') }}{% endfor %}", {}),
    ("scope-loop", "{% set a = 1 %}{% for x in [1, 2] %}{{ a }}{% set a = 5 %}{{ a }}{% endfor %}{{ a }}", {}),
    ("scope-if", "{% if true %}{% set a = 2 %}{% endif %}{{ a }}", {}),
    ("namespace", "{% set n = namespace(i=0, s=[]) %}{% for x in 'ab' %}{% set n.i = n.i + 1 %}{% set n.s = n.s + [x] %}{% endfor %}{{ n.i }}{{ n.s }}", {}),
    ("set-tuple", "{% set a, b = 1, 2 %}{{ b }}{{ a }}", {}),
    ("set-block", "{% set a | upper %}x{{ 1 }}{% endset %}[{{ a }}]", {}),
    ("with", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}[{{ a }}]", {}),
    ("filter-block", "{% filter upper | trim %} a{{ 'b' }} {% endfilter %}", {}),
    ("generation", "a{% generation %}b{% set x = 1 %}{% endgeneration %}{{ x }}", {}),
    ("macro", "{% macro m(a, b='d', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=2, a=1) }}{{ m() }}", {}),
    ("macro-default-sees-args", "{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m('x') }}", {}),
    ("macro-rest", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}", {}),
    ("macro-recursion", "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", {}),
    ("macro-closure", "{% set z = 1 %}{% macro m() %}{{ z }}{{ y }}{% endmacro %}{% for y in [9] %}{{ m() }}{% endfor %}{% set z = 2 %}{{ m() }}", {}),
    ("call-block", "{% macro m(x) %}[{{ caller(x) }}{{ caller(2) }}]{% endmacro %}{% call(v) m(1) %}<{{ v }}>{% endcall %}", {}),
    ("spread", "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}", {}),
    # filters and tests
    ("tojson", "{{ t | tojson }}", {"t": TOOLS}),
    ("tojson-indent", "{{ t | tojson(indent=2) }}", {"t": TOOLS}),
    ("tojson-ascii", "{{ 'é🙂\\x7f' | tojson(ensure_ascii=true) }} {{ 'é\\x7f</b>' | tojson }}", {}),
    ("tojson-odd", "{{ {1: none, true: 2.0, none: [], 'k': {}} | tojson }} {{ (1, 'a') | tojson(separators=(',', ':')) }}", {}),
    ("default", "{{ x | default('d') }} {{ '' | default('d') }}| {{ '' | default('d', true) }} {{ none | d('z') }}", {}),
    ("join", "{{ [1, 'a', none] | join('-') }} {{ rows | join('/', attribute='n') }} {{ 'abc' | join(',') }}", {"rows": ROWS}),
    ("map", "{{ rows | map(attribute='n') | list }} {{ [1, 2] | map('string') | join }} {{ rows | map(attribute='ok', default='-') | list }}", {"rows": ROWS}),
    ("select", "{{ rows | selectattr('ok') | map(attribute='n') | list }} {{ rows | rejectattr('p', 'gt', 1) | list | length }} {{ [0, 1, '', 2] | select | list }} {{ [1, 2, 3] | reject('odd') | list }}", {"rows": ROWS}),
    ("sort", "{{ ['b', 'A', 'c'] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ rows | sort(attribute='n') | map(attribute='p') | list }}", {"rows": ROWS}),
    ("dictsort", "{% for k, v in {'b': 1, 'A': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }}", {}),
    ("unique", "{{ ['a', 'A', 'b', 'a'] | unique | list }} {{ [1, 1.0, 2] | unique | list }}", {}),
    ("numbers-filters", "{{ '12' | int + 1 }} {{ 'x' | int(7) }} {{ '2.7' | int }} {{ '1.5' | float }} {{ -3 | abs }} {{ 2.5 | round }} {{ 2.345 | round(2) }} {{ 2.1 | round(method='ceil') }}", {}),
    ("sequences", "{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }} {{ [1, 5, 3] | max }}{{ ['b', 'a'] | min }} {{ [1, 2] | sum }} {{ 'abc' | reverse }} {{ [1, 2, 3] | batch(2) | list }} {{ [1, 2, 3] | slice(2) | list }}", {}),
    ("text-filters", "{{ 'hELLO wORLD' | title }} {{ 'hELLO' | capitalize }} {{ ' x ' | trim }} {{ 'a-b' | replace('-', '+') }} {{ 'a b c' | wordcount }} {{ 'x' | center(5) }}|", {}),
    ("sharp-s", "{{ 'ßa' | title }} {{ 'ßa'.title() }} {{ 'ßa' | capitalize }} {{ 'ß' | upper }} {{ 'ß'.swapcase() }}", {}),
    ("indent", "{{ 'a\\n\\nb\\n' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(1, blank=true) }}", {}),
    ("markup", "{{ '<b>' | safe + '<i>' }} {{ '<b>' | e }} {{ ('<' | safe) ~ '<' }}", {}),
    ("tests", "{{ x is defined }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 'a' is string }} {{ {} is mapping }} {{ {} is sequence }} {{ 'a' is iterable }} {{ none is none }} {{ 1.0 is float }} {{ 3 is divisibleby 3 }} {{ 2 is even }}", {}),
    ("string-methods", "{{ ' a b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'xxaxx'.strip('x') }} {{ 'a.b'.rsplit('.', 1) }} {{ 'aXbX'.replace('X', '', 1) }} {{ 'aé'.upper() }} {{ 'a\\nb\\r\\n'.splitlines() }} {{ 'k=v'.partition('=') }}", {}),
    ("undefined", "[{{ x }}{{ x ~ 'a' }}{{ x | length }}{{ x | list }}{{ x or 'd' }}{{ x == y }}]", {}),
    ("globals", "{{ range(3) | list }} {{ range(5, 1, -2) | list }} {{ range(2) }} {{ dict(a=1) }} {% set j = joiner('; ') %}{{ j() }}a{{ j() }}b", {}),
    ("date", "{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A, %B %-d') if false }} {{ strftime_now('%j %p %I %y %%') }}", {}),
    # conversations, in formats of our own
    ("chat", "{{ bos }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}", {"messages": CHAT, "bos": "^", "add_generation_prompt": True}),
    ("chat-think", "{% for m in messages if m.role != 'system' %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ m.role[0] | upper }}: {{ c.strip() }}\n{% endfor %}", {"messages": CHAT}),
    ("chat-system", "{% if messages[0].role == 'system' %}{% set s, messages = messages[0].content, messages[1:] %}{% else %}{% set s = 'default' %}{% endif %}[{{ s }}]{{ messages | length }}", {"messages": CHAT}),
    ("chat-tools", "{%- for t in tools %}{{ t.function.name }}: {{ t.function | tojson }}\n{% endfor %}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }} {% endfor %}{% endfor %}{% else %}{{ m.role }} {{ m.content }}\n{% endif %}{% endfor %}", {"messages": CALLS, "tools": TOOLS}),
    ("chat-alternate", "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate, got ' + m.role) }}{% endif %}{% endfor %}", {"messages": CHAT}),
    # failures
    ("fail-undefined", "a\n{{ x.y }}", {}),
    ("fail-key", "\n\n{{ d.a.b }}", {"d": {}}),
    ("fail-type", "{{ 'a' + 1 }}", {}),
    ("fail-none", "{{ messages[1].content + 'x' }}", {"messages": CALLS}),
    ("fail-call", "{{ 'a'.nosuch() }}", {}),
    ("fail-iterate", "{% for x in 1 %}{% endfor %}", {}),
    ("fail-unpack", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", {}),
    ("fail-divide", "{{ 1 // 0 }}", {}),
    ("fail-json", "{{ [x] | tojson }}", {}),
    ("fail-raise", "{{ raise_exception('no ' ~ 1) }}", {}),
    ("fail-filter", "\n{{ 1 | nosuch }}", {}),
    ("fail-test", "{{ 1 is nosuch }}", {}),
    ("fail-append", "{{ [].append(1) }}", {}),
    ("fail-dunder", "{{ ''.__class__.x }}", {}),
    ("fail-arguments", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", {}),
    ("fail-keyword", "{% macro m(a) %}{% endmacro %}{{ m(z=2) }}", {}),
    ("syntax-tag", "{% nosuch %}", {}),
    ("syntax-end", "\n{% if x %}\n{% for y in z %}\n", {}),
    ("syntax-nesting", "{% if x %}{% endfor %}", {}),
    ("syntax-expression", "{{ 1 + }}", {}),
    ("syntax-bracket", "{{ (1] }}", {}),
    ("syntax-string", "{{ 'a }}", {}),
    ("syntax-char", "{{ 1 ? 2 }}", {}),
    ("syntax-comment", "{# a", {}),
    ("syntax-set", "{% set true = 1 %}", {}),
    ("syntax-break", "{% break %}", {}),
    # what transformers refuses and some templates need
    ("append", "{% set l = [] %}{% for m in messages %}{% set _ = l.append(m.role) %}{% endfor %}{{ l }}{{ l.pop() }}{{ l.pop(0) }}{{ l }}", {"messages": CHAT}),
    ("from-json", "{{ '{\"a\": [1, 2.0, \"\\\\u00e9\"], \"a\": [true, null]}' | from_json }} {{ ('[1]' | from_json)[0] + 1 }}", {}),
]
NEEDS = {"append": "append", "from-json": "from_json"}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("emit"), [], [], body).set_lineno(line)

    def emit(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment(needs):
    kind = SandboxedEnvironment if needs == "append" else ImmutableSandboxedEnvironment
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    if needs == "from_json":
        env.filters["from_json"] = json.loads
    return env


def case(name, template, variables):
    entry = {"name": name, "template": template, "context": variables}
    needs = NEEDS.get(name)
    if needs:
        entry["needs"] = needs
    try:
        entry["expected"] = environment(needs).from_string(template).render(**copy.deepcopy(variables))
    except Exception as e:
        entry["error"] = str(e)
    return entry


def main():
    path = os.path.join(HERE, "cases.json")
    text = json.dumps([case(*c) for c in CASES], ensure_ascii=False, indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        with open(path, encoding="utf-8") as f:
            return f.read() != text
    if sys.argv[1:]:
        sys.exit(__doc__)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
