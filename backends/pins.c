/* SPDX-License-Identifier: MIT */
#include "pins.h"

#include "mem.h"
#include "status.h"

#include <pthread.h>
#include <stdlib.h>

struct bl_pins {
    pthread_mutex_t turn;
    struct bl_pin *first;
};

enum bl_status bl_pins_open(struct bl_pins **out)
{
    struct bl_pins *p = bl_calloc(1, sizeof *p);

    if (!p)
        return bl_fail(BL_ENOMEM, "out of memory for what drivers hold down");
    pthread_mutex_init(&p->turn, NULL);
    *out = p;
    return BL_OK;
}

void bl_pins_close(struct bl_pins *p)
{
    if (!p)
        return;
    for (struct bl_pin *k = p->first, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    pthread_mutex_destroy(&p->turn);
    free(p);
}

static struct bl_pin *find(const struct bl_pins *p, const void *who, const void *at, size_t bytes)
{
    for (struct bl_pin *k = p->first; k; k = k->next)
        if (k->who == who && k->at == at && k->bytes == bytes)
            return k;
    return NULL;
}

static struct bl_pin *make(struct bl_pins *p, const struct bl_pinning *how, void *at, size_t bytes)
{
    struct bl_pin *k = bl_calloc(1, sizeof *k);

    if (!k)
        return NULL;
    *k = (struct bl_pin){.who = how->who, .at = at, .bytes = bytes, .next = p->first};
    k->reached = how->pin(how->arg, at, bytes, &k->ours);
    p->first = k;
    return k;
}

struct bl_pin *bl_pins_hold(struct bl_pins *p, const struct bl_pinning *how, void *at, size_t bytes)
{
    pthread_mutex_lock(&p->turn);
    struct bl_pin *k = find(p, how->who, at, bytes);
    if (!k)
        k = make(p, how, at, bytes);
    if (k)
        k->n_holders++;
    pthread_mutex_unlock(&p->turn);
    return k;
}

static void forget(struct bl_pins *p, struct bl_pin *pin)
{
    struct bl_pin **at = &p->first;

    while (*at != pin)
        at = &(*at)->next;
    *at = pin->next;
    free(pin);
}

void bl_pins_release(struct bl_pins *p, const struct bl_pinning *how, struct bl_pin *pin)
{
    pthread_mutex_lock(&p->turn);
    if (!--pin->n_holders) {
        if (pin->ours)
            how->unpin(how->arg, pin->at);
        forget(p, pin);
    }
    pthread_mutex_unlock(&p->turn);
}
