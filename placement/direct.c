/* SPDX-License-Identifier: MIT */
#include "direct.h"

#include "log.h"
#include "machine_file.h"
#include "status.h"

#include <math.h>

/* ---- what drivers say ---- */

static bool may_reach(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    const struct bl_machine_device *x = &m->device[a], *y = &m->device[b];

    return x->backend == y->backend && !x->described && !y->described && x->backend->reach &&
           x->index != y->index && !bl_machine_direct(m, a, b) &&
           x->backend->reach(x->index, y->index) && x->backend->reach(y->index, x->index);
}

static double way_bps(const struct bl_machine *m, uint16_t from, uint16_t to, double *latency_ns)
{
    double up_ns, down_ns;
    const double up = bl_machine_path_bps(m, from, 0, &up_ns),
                 down = bl_machine_path_bps(m, 0, to, &down_ns);

    *latency_ns = fmax(up_ns, down_ns);
    return fmin(up, down);
}

static enum bl_status join(struct bl_machine *m, uint16_t a, uint16_t b)
{
    struct bl_link l = {.a = a, .b = b, .via = BL_NO_DEVICE, .name = "card to card"};

    l.ab_rated_bps = way_bps(m, a, b, &l.latency_ns);
    l.ba_rated_bps = way_bps(m, b, a, &l.latency_ns);
    return l.ab_rated_bps > 0 && l.ba_rated_bps > 0 ? bl_machine_add_link(m, &l) : BL_OK;
}

enum bl_status bl_direct_find(struct bl_machine *m, uint16_t first)
{
    for (uint16_t b = first > 2 ? first : 2; b < m->n_devices; b++)
        for (uint16_t a = 1; a < b; a++)
            if (may_reach(m, a, b))
                BL_TRY(join(m, a, b));
    return BL_OK;
}

/* ---- what they do ---- */

/* One that is not opened has no part in the plan. */
static bool holds(const struct bl_link *l, struct bl_device *const *device)
{
    struct bl_device *a = device[l->a], *b = device[l->b];

    return !l->a || !l->b || !a || !b ||
           (a->ops->reaches && b->ops->reaches && a->ops->reaches(a, b) && b->ops->reaches(b, a));
}

void bl_direct_check(struct bl_machine *m, struct bl_device *const *device)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < m->n_links; i++)
        if (holds(&m->link[i], device))
            m->link[kept++] = m->link[i];
        else
            bl_info("%s and %s do not copy to each other: what goes from one to the other goes "
                    "through the host",
                    m->device[m->link[i].a].id, m->device[m->link[i].b].id);
    m->n_links = kept;
}
