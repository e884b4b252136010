/* SPDX-License-Identifier: MIT */
/* verbs.h — the verbs of the program.
 *
 * Purpose   one function per verb; argv[0] is the verb's name.
 * Ownership argv is borrowed.
 * Units     none.
 * Errors    the result is the process's exit code (enum bl_exit).
 * Threads   called once, from main.
 */
#ifndef BL_VERBS_H
#define BL_VERBS_H

int bl_verb_run(int argc, char **argv);
int bl_verb_logits(int argc, char **argv);
int bl_verb_tokenize(int argc, char **argv);
int bl_verb_info(int argc, char **argv);
int bl_verb_probe(int argc, char **argv);
int bl_verb_plan(int argc, char **argv);
int bl_verb_bench(int argc, char **argv);
int bl_verb_synth(int argc, char **argv);
int bl_verb_template(int argc, char **argv);

#endif
