/* SPDX-License-Identifier: MIT */
#include "chat.h"

#include <stdlib.h>

#include "mem.h"

/* DeepSeek-V4 ships an encoder in Python instead of a template; this does what it does. The wording
 * of the tool header and of the effort prefixes is DeepSeek's (MIT licence), effort levels are
 * those of the 0731 release. In pieces, since compilers need not take longer literals. */
static const char *const deepseek4[] = {
    /* what is on: thinking unless switched off; reasoning of earlier turns only where tools are in
       play */
    "{%- set thinking = thinking if thinking is defined else"
    " (enable_thinking if enable_thinking is defined else true) -%}\n"
    "{%- set effort = reasoning_effort if reasoning_effort is defined else 'low' -%}\n"
    "{%- set ns = namespace(last=-1, keep=tools, system=-1, calls=[], results=[], shown=0) -%}\n"
    "{%- for m in messages -%}\n"
    "  {%- if m.role in ('user', 'developer', 'tool') -%}{%- set ns.last = loop.index0 -%}{%- "
    "endif -%}\n"
    "  {%- if m.role == 'system' and ns.system < 0 -%}{%- set ns.system = loop.index0 -%}{%- endif "
    "-%}\n"
    "  {%- if m.tools -%}{%- set ns.keep = true -%}{%- endif -%}\n"
    "{%- endfor -%}\n",

    "{%- macro extras(tools, format) -%}\n"
    "{%- if tools -%}\n"
    "{{ '\\n\\n## Tools\\n\\nYou have access to a set of tools to help answer the user\\'s "
    "question. You can invoke tools"
    " by writing a \"<｜DSML｜tool_calls>\" block like the "
    "following:\\n\\n<｜DSML｜tool_calls>\\n<｜DSML｜invoke"
    " name=\"$TOOL_NAME\">\\n<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE"
    "</｜DSML｜parameter>\\n...\\n</｜DSML｜invoke>\\n<｜DSML｜invoke "
    "name=\"$TOOL_NAME2\">\\n...\\n</｜DSML｜invoke>\\n"
    "</｜DSML｜tool_calls>\\n\\nString parameters should be specified as is and set "
    "`string=\"true\"`. For all other types"
    " (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\\n\\nIf"
    " thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside"
    " <think>...</think> BEFORE any tool calls or final response.\\n\\nOtherwise, output directly "
    "after </think> with tool"
    " calls or final response.\\n\\n### Available Tool Schemas\\n\\n' }}\n"
    "{%- for t in tools -%}{{ '' if loop.first else '\\n' }}{{ (t.function or t) | tojson }}{%- "
    "endfor -%}\n"
    "{{ '\\n\\nYou MUST strictly follow the above defined tool name and parameter schemas to "
    "invoke tool calls.\\n' }}\n"
    "{%- endif -%}\n"
    "{%- if format -%}\n"
    "{{ '\\n\\n## Response Format:\\n\\nYou MUST strictly adhere to the following schema to "
    "reply:\\n' }}{{ format | tojson }}\n"
    "{%- endif -%}\n"
    "{%- endmacro -%}\n",

    "{%- macro prefix(effort) -%}\n"
    "{%- if effort == 'high' -%}\n"
    "{{ 'Reasoning Effort: Absolute maximum with no shortcuts permitted.\\nYou MUST be very "
    "thorough in your thinking and"
    " comprehensively decompose the problem to resolve the root cause, rigorously stress-testing "
    "your logic against all"
    " potential paths, edge cases, and adversarial scenarios.\\nExplicitly write out your entire "
    "deliberation process,"
    " documenting every intermediate step, considered alternative, and rejected hypothesis to "
    "ensure absolutely no"
    " assumption is left unchecked.\\n\\n' }}\n"
    "{%- elif effort == 'max' -%}\n"
    "{{ 'Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\\nYou MUST "
    "reason with the utmost"
    " depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem "
    "into its most fundamental"
    " components, trace every causal chain to its root, and resolve the underlying cause rather "
    "than any surface"
    " symptom.\\nDo not stop reasoning until you have independently verified the solution from "
    "multiple angles and are"
    " certain that no assumption remains unchecked and no error remains undiscovered.\\n\\n' }}\n"
    "{%- endif -%}\n"
    "{%- endmacro -%}\n"

    "{%- macro invoke(name, args) -%}\n"
    "{%- set object = args if args is mapping else args | from_json(none) -%}\n"
    "{%- set object = object if object is mapping else {'arguments': args} -%}\n"
    "{{ '\\n<｜DSML｜invoke name=\"' ~ name ~ '\">\\n' }}\n"
    "{%- for k, v in object.items() -%}\n"
    "{{ '' if loop.first else '\\n' }}{{ '<｜DSML｜parameter name=\"' ~ k ~ '\" string=\"' }}\n"
    "{{- 'true\">' ~ v if v is string else 'false\">' ~ v | tojson }}{{ '</｜DSML｜parameter>' }}\n"
    "{%- endfor -%}\n"
    "{{ '\\n</｜DSML｜invoke>' }}\n"
    "{%- endmacro -%}\n",

    /* results of tools, in the order of the calls: those of the turn that begins at message `at` */
    "{%- macro collect(at) -%}\n"
    "{%- set turn = namespace(results=[], ids=ns.calls | map(attribute='id') | list, sorted=[]) "
    "-%}\n"
    "{%- for i in range(at, messages | length) -%}\n"
    "  {%- if messages[i].role not in ('user', 'tool') -%}{%- break -%}{%- endif -%}\n"
    "  {%- if messages[i].role == 'tool' -%}{%- set turn.results = turn.results + [messages[i]] "
    "-%}{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- for id in turn.ids -%}\n"
    "  {%- set first = loop.first -%}\n"
    "  {%- for m in turn.results if m.tool_call_id == id or (first and m.tool_call_id not in "
    "turn.ids) -%}\n"
    "    {%- set turn.sorted = turn.sorted + [m] -%}\n"
    "  {%- endfor -%}\n"
    "{%- endfor -%}\n"
    "{%- set ns.results = turn.sorted if turn.sorted | length == turn.results | length else "
    "turn.results -%}\n"
    "{%- set ns.shown = 0 -%}\n"
    "{%- endmacro -%}\n",

    "{{- bos_token -}}\n"
    "{%- if thinking -%}{{ prefix(effort) }}{%- endif -%}\n"
    "{%- if ns.system < 0 -%}{{ extras(tools, response_format) }}{%- endif -%}\n"
    "{%- for m in messages -%}\n"
    "  {%- set role = m.role -%}\n"
    "  {%- set recent = ns.keep or loop.index0 >= ns.last -%}\n"
    "  {%- set content = m.content or '' -%}\n"
    "  {%- if role == 'system' -%}\n"
    "    {{- content -}}\n"
    "    {%- if loop.index0 == ns.system -%}{{ extras(tools, response_format) }}{%- endif -%}\n"
    "    {{- extras(m.tools, m.response_format) -}}\n"
    "  {%- elif role == 'latest_reminder' -%}\n"
    "    {{- '<｜latest_reminder｜>' ~ content -}}\n"
    "  {%- elif role in ('user', 'tool') -%}\n"
    "    {%- if loop.first or loop.previtem.role not in ('user', 'tool') -%}\n"
    "      {{- collect(loop.index0) -}}{{- '<｜User｜>' -}}\n"
    "    {%- else -%}\n"
    "      {{- '\\n\\n' -}}\n"
    "    {%- endif -%}\n"
    "    {%- if role == 'tool' -%}\n"
    "      {{- '<tool_result>' ~ (ns.results[ns.shown].content or '') ~ '</tool_result>' -}}\n"
    "      {%- set ns.shown = ns.shown + 1 -%}\n"
    "    {%- else -%}\n"
    "      {{- content -}}\n"
    "    {%- endif -%}\n"
    "  {%- elif role == 'developer' -%}\n"
    "    {%- if recent or not thinking -%}{{- '<｜User｜>' ~ content ~ extras(m.tools, "
    "m.response_format) -}}{%- endif -%}\n"
    "  {%- elif role == 'assistant' -%}\n"
    "    {%- if thinking and recent -%}{{- (m.reasoning_content or '') ~ '</think>' -}}{%- endif "
    "-%}\n"
    "    {{- content -}}\n"
    "    {%- if m.tool_calls -%}\n"
    "      {%- set ns.calls = m.tool_calls -%}\n"
    "      {{- '\\n\\n<｜DSML｜tool_calls>' -}}\n"
    "      {%- for c in m.tool_calls -%}\n"
    "        {%- set f = c.function or c -%}{{- invoke(f.name, f.arguments) -}}\n"
    "      {%- endfor -%}\n"
    "      {{- '\\n</｜DSML｜tool_calls>' -}}\n"
    "    {%- endif -%}\n"
    "    {{- eos_token -}}\n"
    "  {%- else -%}\n"
    "    {{- raise_exception('DeepSeek-V4 knows no role ' ~ role) -}}\n"
    "  {%- endif -%}\n",

    /* who speaks next */
    "  {%- set ask = add_generation_prompt if loop.last else loop.nextitem.role in ('assistant', "
    "'latest_reminder') -%}\n"
    "  {%- set think = '<think>' if thinking and recent else '</think>' -%}\n"
    "  {%- if ask and m.task -%}\n"
    "    {{- '<｜Assistant｜>' ~ think if m.task == 'action' -}}{{- '<｜' + m.task + '｜>' -}}\n"
    "  {%- elif ask and role in ('user', 'tool', 'developer') and (role != 'developer' or recent "
    "or not thinking) -%}\n"
    "    {{- '<｜Assistant｜>' ~ think -}}\n"
    "  {%- endif -%}\n"
    "{%- endfor -%}\n",
};

static const struct {
    const char *arch;
    const char *const *pieces;
    size_t n;
} builtins[] = {{"deepseek4", deepseek4, BL_COUNT(deepseek4)}};

static enum bl_status compile_pieces(struct bl_jinja **out, const char *const *pieces, size_t n)
{
    size_t n_bytes = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        n_bytes += strlen(pieces[i]);
    char *source = bl_calloc(n_bytes + 1, 1);
    if (!source)
        return bl_fail(BL_ENOMEM, "template: out of memory for %zu bytes", n_bytes);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(pieces[i]);
        memcpy(source + at, pieces[i], len);
        at += len;
    }
    enum bl_status st = bl_jinja_compile(out, source, n_bytes, NULL);
    free(source);
    return st;
}

enum bl_status bl_chat_compile_builtin(struct bl_jinja **out, const char *arch)
{
    for (size_t i = 0; i < BL_COUNT(builtins); i++)
        if (strcmp(builtins[i].arch, arch) == 0)
            return compile_pieces(out, builtins[i].pieces, builtins[i].n);
    return bl_fail(BL_EUNAVAILABLE, "no chat template is built in for '%s'", arch);
}
