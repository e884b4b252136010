/* SPDX-License-Identifier: MIT */
/* cards_rig.h — engines over emulated cards of one vendor or of several by turns, with a Vulkan device as the last if asked.
 *
 *     cards_load(argc, argv);  fresh_cards();
 *     cards_open(&engine, "mixtral-f32", &opt, 2, place, arg)
 *
 * Purpose   device 0 is this CPU, the others are what the libraries named by the test's arguments show.
 * Ownership as bl_open; the libraries stay loaded.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_CARDS_RIG_H
#define BL_TEST_CARDS_RIG_H

#include "engine_rig.h"

#include "direct.h"
#include "divide.h"
#include "parts.h"
#include "simt_rig.h"

enum { MOST_FACES = 4, MOST_CARDS = 3 };
static struct simt_rig face[MOST_FACES];
static uint32_t n_faces, n_cards = MOST_CARDS; /* of each face at the least */
static const struct bl_backend *last_card; /* NULL: as the others */
static uint32_t one_of = 1, n_met;         /* of so many cases one is looked at: the rest costs too much where all is watched */

static inline const struct emu_config *usual_cards(void)
{
    static const struct emu_config c = {.n_cards = MOST_CARDS, .late_us = 50, .seed = 1};
    return &c;
}

static inline bool cards_leave_out(void)
{
    return n_met++ % one_of != 0;
}

/* Emulated drivers, or "cuda", "hip": those of this machine. */
static inline bool cards_load(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc && n_faces < MOST_FACES && argv[i][0] != '-'; i++) {
        uint32_t n = MOST_CARDS;
        rig = (struct simt_rig){0};
        rig_load(argv[i]);
        if (!rig.is_real)
            rig.configure(usual_cards());
        else if (rig.backend->count(&n)) {
            fprintf(stderr, "%s\n", bl_error());
            return false;
        }
        n_cards = n_cards < n ? n_cards : n;
        face[n_faces++] = rig;
    }
    if (argc > 2 && !strcmp(argv[argc - 2], "--one-of"))
        one_of = (uint32_t)strtoul(argv[argc - 1], NULL, 10);
    if (!n_faces || !one_of)
        fprintf(stderr, "usage: %s LIBRARY|cuda|hip... [--one-of N]\n", argv[0]);
    return n_faces && one_of;
}

/* What was there before was all given back. */
static inline void fresh_cards_like(const struct emu_config *like)
{
    for (uint32_t i = 0; i < n_faces; i++) {
        struct emu_config c = *like;
        c.seed += i;
        if (!face[i].is_real && !face[i].configure(&c))
            fail_msg("%s: something was not given back", face[i].path);
    }
}

static inline void fresh_cards(void)
{
    fresh_cards_like(usual_cards());
}

static inline enum bl_status cards_add(struct bl_machine *m, uint32_t n)
{
    struct bl_machine_device *d = realloc(m->device, (n + 1) * sizeof *d);

    if (!d)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", n);
    m->device = d;
    m->n_devices = n + 1;
    free(m->link);
    if (!(m->link = calloc(n, sizeof *m->link)))
        return bl_fail(BL_ENOMEM, "out of memory for %u links", n);
    for (uint32_t i = 1; i <= n; i++) {
        m->link[i - 1] = (struct bl_link){
            .b = (uint16_t)i, .via = BL_NO_DEVICE, .ab_rated_bps = 16e9, .ba_rated_bps = 16e9};
        const bool is_other = last_card && i == n;
        d[i] = d[0];
        d[i].backend = is_other ? last_card : face[(i - 1) % n_faces].backend;
        d[i].index = is_other ? 0 : (i - 1) / n_faces;
        d[i].config.number = (uint16_t)i;
        snprintf(d[i].id, sizeof d[i].id, "%s%u", d[i].backend->name, d[i].index);
        d[i].kind = BL_KIND_GPU;
        BL_TRY(d[i].backend->caps(d[i].index, &d[i].config, &d[i].caps));
    }
    m->n_links = n;
    return bl_direct_find(m, 1);
}

typedef enum bl_status place_fn(struct bl_plan *, const struct bl_model *, uint32_t n_devices, void *arg);

static inline enum bl_status cards_parts(struct bl_engine_parts *p, const char *name, const struct bl_options *opt,
                                         uint32_t n, place_fn *place, void *arg)
{
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_make(&p->plan, p->model, &p->machine, opt));
    BL_TRY(cards_add(&p->machine, n));
    BL_TRY(place(&p->plan, p->model, n + 1, arg));
    BL_TRY(parts_devices(p));
    bl_direct_check(&p->machine, p->device);
    return BL_OK;
}

static inline enum bl_status cards_open(struct bl_engine **out, const char *name, const struct bl_options *opt, uint32_t n,
                                        place_fn *place, void *arg)
{
    struct bl_engine_parts p = {0};
    return parts_open(out, &p, opt, cards_parts(&p, name, opt, n, place, arg));
}

static inline struct bl_engine *on_cards(const char *name, const struct bl_options *opt, uint32_t n, place_fn *place,
                                         void *arg)
{
    struct bl_engine *e = NULL;

    if (cards_open(&e, name, opt, n, place, arg))
        fail_msg("%s: %s", name, bl_error());
    return e;
}

/* Of all vendors' cards together. */
static inline struct emu_counts cards_counts(void)
{
    struct emu_counts all = {0}, c;

    for (uint32_t i = 0; i < n_faces; i++) {
        if (face[i].is_real) /* it does not tell what it was asked for */
            continue;
        face[i].read(&c);
        all.calls += c.calls;
        all.copies += c.copies;
        all.peer_copies += c.peer_copies;
        all.pageable_copies += c.pageable_copies;
        all.to_card_bytes += c.to_card_bytes;
        all.from_card_bytes += c.from_card_bytes;
        all.registered += c.registered;
        all.host_bytes += c.host_bytes;
    }
    return all;
}

#endif
