/* SPDX-License-Identifier: MIT */
/* Names and counters of the kinds of steps; segment.c adds to them. */
#include "segment.h"

#include <stdio.h>

enum { NO_WEIGHT = UINT8_MAX };

static uint8_t weight_type(const struct bl_graph *g, const struct bl_node *n)
{
    for (unsigned i = 0; i < n->n_src; i++) {
        const struct bl_value *v = &g->vals[bl_node_src(g, n, i)];
        if (v->origin == BL_WEIGHT)
            return v->type;
    }
    return NO_WEIGHT;
}

uint8_t bl_cpu_profile_kind(struct bl_cpu_profile *p, const struct bl_graph *g,
                            const struct bl_node *n)
{
    const struct bl_cpu_kind want = {n->op, n->part == BL_PART_HEAD, weight_type(g, n), 0, 0, 0, 0};
    for (uint32_t i = 0; i < p->n; i++)
        if (p->kind[i].op == want.op && p->kind[i].head == want.head &&
            p->kind[i].type == want.type)
            return (uint8_t)i;
    if (p->n == BL_CPU_KINDS)
        return BL_CPU_KINDS - 1;
    p->kind[p->n] = want;
    if (p->n == BL_CPU_KINDS - 1)
        p->kind[p->n].op = BL_N_OPS;
    return (uint8_t)p->n++;
}

void bl_cpu_profile_set(struct bl_device *dev, bool on, bool from_zero)
{
    struct bl_cpu_device *d = (struct bl_cpu_device *)dev;
    pthread_mutex_lock(&d->turn);
    d->profile.on = on;
    for (uint32_t i = 0; from_zero && i < d->profile.n; i++) {
        struct bl_cpu_kind *k = &d->profile.kind[i];
        k->steps = k->run_ns = 0;
        k->barriers = k->wait_ns = 0;
    }
    pthread_mutex_unlock(&d->turn);
}

uint32_t bl_cpu_profile_get(const struct bl_device *dev, uint32_t i, struct bl_op_time *out)
{
    const struct bl_cpu_profile *p = &((const struct bl_cpu_device *)dev)->profile;
    if (i >= p->n)
        return p->n;
    const struct bl_cpu_kind *k = &p->kind[i];
    *out = (struct bl_op_time){
        .steps = k->steps, .barriers = k->barriers, .run_ns = k->run_ns, .wait_ns = k->wait_ns};
    snprintf(out->name, sizeof out->name, "%s%s%s%s", k->head ? "head " : "",
             k->op < BL_N_OPS ? bl_ops[k->op].name : "others", k->type < BL_N_DTYPES ? " " : "",
             k->type < BL_N_DTYPES ? bl_dtypes[k->type].name : "");
    return p->n;
}
