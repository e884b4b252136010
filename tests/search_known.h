/* SPDX-License-Identifier: MIT */
/* search_known.h — searches that know how often experts are used.
 *
 * Purpose   statistics of a given shape, and a search by them that keeps to every device's budget.
 * Ownership the caller finishes the statistics; the rig borrows them.
 * Units     tokens.
 * Errors    fails the test.
 * Threads   one.
 */
#ifndef BL_SEARCH_KNOWN_H
#define BL_SEARCH_KNOWN_H

#include "search_rig.h"

#include <math.h>

/* Uses fall as 1 / rank^skew, the most used at a place that differs by layer; an expert is used
 * again after i others with a chance that falls by `again` each. */
static inline struct bl_expert_stats made(const struct bl_model *m, double skew, double again)
{
    const uint32_t n = m->hp.n_expert;
    struct bl_expert_stats s;

    assert_int_equal(bl_expert_stats_init(&s, m->hp.n_layer, n), BL_OK);
    s.n_tok = 1000000;
    for (uint32_t l = 0; l < s.n_layers; l++)
        for (uint32_t i = 0; m->layer[l].moe && i < n; i++) {
            s.uses[l * n + (i * 37 + l) % n] = (uint64_t)(1e6 / pow(i + 1, skew));
            s.reuse[l * n + i] = (uint64_t)(1e6 * (1 - again) * pow(again, i));
            s.alone[l] = 1000000;
        }
    return s;
}

static inline void search(struct rig *r, const struct bl_expert_stats *known)
{
    r->so.known = known;
    if (bl_search(&r->c, r->model, &r->machine, &r->opt, &r->so))
        fail_msg("%s", bl_error());
    for (uint16_t d = 0; d < r->machine.n_devices; d++)
        assert_true(bl_ledger_planned(&r->c.plan.ledger, d) <=
                    bl_device_budget(&r->machine.device[d], r->so.reserve_bytes));
}

#endif
