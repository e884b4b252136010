/* SPDX-License-Identifier: MIT */
/* Rotary embedding: what the file says, what the options say instead, and the angles of a step that
 * come out of both. Options reach the layers that see the whole context: a sliding window holds no
 * distance that the model was not trained for. */
#include "model.h"

#include <math.h>
#include <stdio.h>

static const float LEAST_BASE = 2, MOST_BASE = 1e15f;

enum scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN, SCALING_LONGROPE };
static const char *const scaling_name[] = {"none", "linear", "yarn", "longrope"};
enum { OPTIONAL_SCALINGS = SCALING_YARN + 1 }; /* what an option can ask for */

static bool scaling_by_name(const char *s, uint64_t n, unsigned n_known, enum scaling *out)
{
    for (unsigned i = 0; i < n_known; i++)
        if (n == strlen(scaling_name[i]) && !memcmp(s, scaling_name[i], n)) {
            *out = (enum scaling)i;
            return true;
        }
    return false;
}

/* ---- the file ---- */

/* *out keeps its value when the key is absent. */
static enum bl_status read_scaling(const struct bl_model *m, enum scaling *out)
{
    char key[128], value[BL_SHOWN_BYTES], shown[BL_SHOWN_BYTES];
    const char *s = scaling_name[*out];
    uint64_t n = strlen(s);
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->family->arch);
    BL_TRY(bl_gguf_str(m->gguf, key, false, &s, &n));
    if (scaling_by_name(s, n, BL_COUNT(scaling_name), out))
        return BL_OK;
    snprintf(value, sizeof value, "%.*s", n < sizeof value ? (int)n : (int)sizeof value, s);
    return bl_model_fail(m, BL_EUNSUPPORTED, "%s is '%s'; must be none, linear, yarn or longrope",
                         key, bl_gguf_show(shown, value));
}

/* The factor s of families.md 2.3; writers use 0 for "none". */
static enum bl_status read_factor(const struct bl_model *m, float *s)
{
    *s = 1;
    BL_TRY(bl_hp_f32(m, "rope.scale_linear", false, 0, 1e6f, s));
    BL_TRY(bl_hp_f32(m, "rope.scaling.factor", false, 0, 1e6f, s));
    if (*s == 0)
        *s = 1;
    if (*s < 1e-3f)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.rope.scaling.factor is %g; must be 0 or 0.001 to 1e6",
                             m->family->arch, (double)*s);
    return BL_OK;
}

static enum bl_status read_keys(struct bl_model *m, enum scaling *kind)
{
    struct bl_hparams *hp = &m->hp;
    float s;
    hp->rope_base = 10000;
    hp->rope_ctx_orig = hp->n_ctx_train;
    hp->rope_magnitude = 1;
    hp->yarn_fast = 32;
    hp->yarn_slow = 1;
    BL_TRY(bl_hp_f32(m, "rope.freq_base", false, LEAST_BASE, MOST_BASE, &hp->rope_base));
    BL_TRY(bl_hp_u32(m, "rope.scaling.original_context_length", false, 1, BL_MAX_CONTEXT,
                     &hp->rope_ctx_orig));
    BL_TRY(bl_hp_f32(m, "rope.scaling.attn_factor", false, 1e-3f, 1e3f, &hp->rope_magnitude));
    BL_TRY(bl_hp_f32(m, "rope.scaling.yarn_beta_fast", false, 1e-3f, 1e6f, &hp->yarn_fast));
    BL_TRY(bl_hp_f32(m, "rope.scaling.yarn_beta_slow", false, 1e-3f, 1e6f, &hp->yarn_slow));
    BL_TRY(read_scaling(m, kind));
    BL_TRY(read_factor(m, &s));
    hp->rope_freq_scale = *kind == SCALING_LINEAR || *kind == SCALING_YARN ? 1 / s : 1;
    hp->rope_long = *kind == SCALING_LONGROPE;
    return BL_OK;
}

/* ---- the options ---- */

static enum bl_status check_options(const struct bl_rope_options *o, enum scaling *kind)
{
    if (o->scaling && !scaling_by_name(o->scaling, strlen(o->scaling), OPTIONAL_SCALINGS, kind))
        return bl_fail(BL_EINVAL, "--rope-scaling %s: must be none, linear or yarn", o->scaling);
    if (o->freq_base != 0 && !(o->freq_base >= LEAST_BASE && o->freq_base <= MOST_BASE))
        return bl_fail(BL_EINVAL, "--rope-freq-base %g: must be %g to %g", (double)o->freq_base,
                       (double)LEAST_BASE, (double)MOST_BASE);
    if (o->freq_scale != 0 && !(o->freq_scale >= 1e-6f && o->freq_scale <= 1e3f))
        return bl_fail(BL_EINVAL, "--rope-freq-scale %g: must be 1e-6 to 1000",
                       (double)o->freq_scale);
    if (o->ctx_orig > BL_MAX_CONTEXT)
        return bl_fail(BL_EINVAL, "--yarn-orig-ctx %u: must be 1 to %d", o->ctx_orig,
                       BL_MAX_CONTEXT);
    return BL_OK;
}

static enum bl_status apply_options(struct bl_model *m, enum scaling *kind)
{
    const struct bl_rope_options *o = &m->opt.rope;
    struct bl_hparams *hp = &m->hp;
    BL_TRY(check_options(o, kind));
    if (o->freq_base != 0)
        hp->rope_base = o->freq_base;
    if (o->freq_scale != 0)
        hp->rope_freq_scale = o->freq_scale;
    if (*kind == SCALING_NONE)
        hp->rope_freq_scale = 1;
    if (o->ctx_orig)
        hp->rope_ctx_orig = o->ctx_orig;
    return BL_OK;
}

/* ---- both ---- */

static float yarn_magnitude(const struct bl_hparams *hp, enum scaling kind)
{
    return kind == SCALING_YARN && hp->rope_freq_scale < 1 ? 1 - 0.1f * logf(hp->rope_freq_scale)
                                                           : 1;
}

enum bl_status bl_model_read_rope(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    enum scaling kind = SCALING_LINEAR;
    BL_TRY(read_keys(m, &kind));
    float magnitude = hp->rope_magnitude, window_base = hp->rope_base;
    hp->rope_yarn = kind == SCALING_YARN;
    hp->rope_magnitude = magnitude * yarn_magnitude(hp, kind);
    BL_TRY(bl_hp_f32(m, "rope.freq_base_swa", false, LEAST_BASE, MOST_BASE, &window_base));
    hp->rope_window = bl_model_angles_at(m, window_base);
    BL_TRY(apply_options(m, &kind));
    hp->rope_yarn = kind == SCALING_YARN;
    hp->rope_magnitude = magnitude * yarn_magnitude(hp, kind);
    return BL_OK;
}

enum bl_status bl_hp_rope_sections(struct bl_model *m)
{
    int32_t pairs = (int32_t)m->hp.rope_dims / 2, n, sum = 0;
    char key[128];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", m->family->arch);
    for (unsigned i = 0; i < 4; i++) {
        BL_TRY(bl_gguf_i32_array(m->gguf, key, i, &n));
        if (n < 0 || n > pairs)
            return bl_model_fail(m, BL_EFORMAT, "element %u of %s is %d; must be 0 to %d", i, key,
                                 n, pairs);
        m->hp.rope_sections[i] = (uint32_t)n;
        sum += n;
    }
    return sum ? BL_OK
               : bl_model_fail(m, BL_EFORMAT, "%s is all 0; must be the pairs of each axis", key);
}

/* The pair at which the original context holds `turns` rotations. */
static float yarn_pair(const struct bl_hparams *hp, float base, float turns)
{
    double n = (double)hp->rope_ctx_orig / (2 * 3.14159265358979323846 * (double)turns);
    return (float)(hp->rope_dims * log(n) / (2 * log((double)base)));
}

struct bl_angles_attr bl_model_angles_at(const struct bl_model *m, float base)
{
    const struct bl_hparams *hp = &m->hp;
    struct bl_angles_attr at = {
        .n_dims = hp->rope_dims,
        .yarn = hp->rope_yarn,
        .base = base,
        .freq_scale = hp->rope_freq_scale,
        .magnitude = hp->rope_magnitude,
    };
    memcpy(at.sections, hp->rope_sections, sizeof at.sections);
    if (hp->rope_yarn) {
        at.lo = fmaxf(0, floorf(yarn_pair(hp, base, hp->yarn_fast)));
        at.hi = fminf((float)hp->rope_dims - 1, ceilf(yarn_pair(hp, base, hp->yarn_slow)));
    }
    return at;
}

struct bl_angles_attr bl_model_angles(const struct bl_model *m)
{
    return bl_model_angles_at(m, m->hp.rope_base);
}
