/* SPDX-License-Identifier: MIT */
/* One line about a model file: architecture, size, type of its weights. */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

static const struct bl_kv *find(const struct bl_gguf *g, const char *key)
{
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++)
        if (!strcmp(bl_gguf_kv(g, i)->key, key))
            return bl_gguf_kv(g, i);
    return NULL;
}

/* general.file_type as llama.cpp's tools name it. */
static const char *file_type_name(uint32_t type)
{
    static const char *const name[] = {
        [0] = "all F32",
        [1] = "F16",
        [2] = "Q4_0",
        [3] = "Q4_1",
        [7] = "Q8_0",
        [8] = "Q5_0",
        [9] = "Q5_1",
        [10] = "Q2_K - Medium",
        [11] = "Q3_K - Small",
        [12] = "Q3_K - Medium",
        [13] = "Q3_K - Large",
        [14] = "Q4_K - Small",
        [15] = "Q4_K - Medium",
        [16] = "Q5_K - Small",
        [17] = "Q5_K - Medium",
        [18] = "Q6_K",
        [19] = "IQ2_XXS - 2.0625 bpw",
        [20] = "IQ2_XS - 2.3125 bpw",
        [21] = "Q2_K - Small",
        [22] = "IQ3_XS - 3.3 bpw",
        [23] = "IQ3_XXS - 3.0625 bpw",
        [24] = "IQ1_S - 1.5625 bpw",
        [25] = "IQ4_NL - 4.5 bpw",
        [26] = "IQ3_S - 3.4375 bpw",
        [27] = "IQ3_S mix - 3.66 bpw",
        [28] = "IQ2_S - 2.5 bpw",
        [29] = "IQ2_M - 2.7 bpw",
        [30] = "IQ4_XS - 4.25 bpw",
        [31] = "IQ1_M - 1.75 bpw",
        [32] = "BF16",
        [38] = "MXFP4 MoE",
    };
    return type < sizeof name / sizeof name[0] ? name[type] : NULL;
}

/* The type that most of the bytes have. */
static const char *main_type(const struct bl_gguf *g)
{
    const char *best = "";
    uint64_t most = 0;

    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const char *name = bl_gguf_tensor(g, i)->type_name;
        uint64_t sum = 0;
        if (!strcmp(name, best))
            continue;
        for (uint32_t j = i; j < bl_gguf_n_tensors(g); j++)
            if (!strcmp(bl_gguf_tensor(g, j)->type_name, name))
                sum += bl_gguf_tensor(g, j)->bytes;
        if (sum > most) {
            most = sum;
            best = name;
        }
    }
    return best;
}

static void name_weights(const struct bl_gguf *g, char *text, size_t cap)
{
    const struct bl_kv *kv = find(g, "general.file_type");
    const char *name = NULL;
    uint32_t type;

    if (kv && kv->type == BL_VAL_U32 && kv->data_bytes == sizeof type) {
        memcpy(&type, kv->data, sizeof type);
        name = file_type_name(type);
    }
    snprintf(text, cap, "%s", name ? name : main_type(g));
    for (char *p = text; !name && *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
}

static void name_architecture(const struct bl_gguf *g, char *text, size_t cap)
{
    const struct bl_kv *kv = find(g, "general.architecture");
    uint64_t n;

    snprintf(text, cap, "?");
    if (!kv || kv->type != BL_VAL_STRING || kv->data_bytes < sizeof n)
        return;
    memcpy(&n, kv->data, sizeof n);
    if (n <= kv->data_bytes - sizeof n)
        bl_clean_text(text, cap, (const char *)kv->data + sizeof n, (size_t)n, true);
}

void bl_bench_describe(const struct bl_gguf *g, struct bl_bench_model *m)
{
    char arch[32], size[24], weights[32];

    *m = (struct bl_bench_model){.n_params = 0};
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        m->bytes += t->bytes;
        m->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    const double n = (double)m->n_params;
    if (n < 1e9)
        snprintf(size, sizeof size, "%.*fM", n < 1e7 ? 1 : 0, n * 1e-6);
    else
        snprintf(size, sizeof size, "%.*fB", n < 1e10 ? 1 : 0, n * 1e-9);
    name_architecture(g, arch, sizeof arch);
    name_weights(g, weights, sizeof weights);
    snprintf(m->type, sizeof m->type, "%s %s %s", arch, size, weights);
}
