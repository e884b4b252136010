/* SPDX-License-Identifier: MIT */
/* Writes the dense model of tests/data/reference that the reference folder lacks.
 *
 *   make_ernie4_5 VOCABULARY.gguf OUT.gguf
 *
 * The vocabulary is copied from the first file; weights are random by a fixed seed and float, the
 * output matrix is the embedding. The logits beside it were recorded with llama.cpp (b11434: F32
 * and F16 cache, one thread, one batch). */
#include "gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EMBD = 64, LAYERS = 3, HEADS = 4, HEADS_KV = 2, HEAD = 32, FF = 96, VOCAB = 512 };

static const struct {
    const char *stem;
    uint64_t n_in, n_out; /* 0: a vector */
} layer_tensor[] = {{"attn_norm", EMBD, 0},
                    {"attn_q", EMBD, HEADS *HEAD},
                    {"attn_k", EMBD, HEADS_KV *HEAD},
                    {"attn_v", EMBD, HEADS_KV *HEAD},
                    {"attn_output", HEADS *HEAD, EMBD},
                    {"ffn_norm", EMBD, 0},
                    {"ffn_gate", EMBD, FF},
                    {"ffn_up", EMBD, FF},
                    {"ffn_down", FF, EMBD}};
enum { N_LAYER_TENSORS = sizeof layer_tensor / sizeof *layer_tensor };

static uint64_t state = 45;

static double chance(void) /* 0 to 1 */
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) / (double)((uint64_t)1 << 53);
}

/* ---- keys ---- */

static enum bl_status put_vocabulary(struct bl_gguf_writer *w, const char *path)
{
    struct bl_gguf *g;
    BL_TRY(bl_gguf_open(&g, path));
    enum bl_status st = BL_OK;
    for (uint32_t i = 0; !st && i < bl_gguf_n_kv(g); i++)
        if (!strncmp(bl_gguf_kv(g, i)->key, "tokenizer.", 10))
            st = bl_gguf_put_kv(w, bl_gguf_kv(g, i));
    bl_gguf_close(g);
    return st;
}

static enum bl_status put_keys(struct bl_gguf_writer *w)
{
    static const char name[] = "tiny dense model, seed 45";
    static const struct {
        const char *key;
        uint32_t x;
    } number[] = {{"context_length", 2048},        {"embedding_length", EMBD},
                  {"block_count", LAYERS},         {"feed_forward_length", FF},
                  {"attention.head_count", HEADS}, {"attention.head_count_kv", HEADS_KV},
                  {"attention.key_length", HEAD},  {"attention.value_length", HEAD},
                  {"rope.dimension_count", HEAD},  {"vocab_size", VOCAB}};
    BL_TRY(bl_gguf_put_str(w, "general.architecture", "ernie4_5", 8));
    BL_TRY(bl_gguf_put_str(w, "general.name", name, sizeof name - 1));
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        char key[64];
        snprintf(key, sizeof key, "ernie4_5.%s", number[i].key);
        BL_TRY(bl_gguf_put_u32(w, key, number[i].x));
    }
    BL_TRY(bl_gguf_put_f32(w, "ernie4_5.attention.layer_norm_rms_epsilon", 1e-5f));
    return bl_gguf_put_f32(w, "ernie4_5.rope.freq_base", 500000);
}

/* ---- tensors ---- */

static enum bl_status put_info(struct bl_gguf_writer *w, const char *name, uint64_t n_in,
                               uint64_t n_out)
{
    return bl_gguf_put_tensor(w, name, BL_F32, n_out ? 2 : 1, (uint64_t[]){n_in, n_out});
}

static enum bl_status put_data(struct bl_gguf_writer *w, uint64_t n_in, uint64_t n_out, double gain)
{
    const double mean = n_out ? 0 : 1, amp = n_out ? gain * sqrt(3 / (double)n_in) : 0.2;
    for (uint64_t i = 0; i < n_in * (n_out ? n_out : 1); i++) {
        const double spread = amp * (2 * chance() - 1); /* rounded by itself on every machine */
        const float x = (float)(mean + spread);
        BL_TRY(bl_gguf_write_data(w, &x, sizeof x));
    }
    return BL_OK;
}

static enum bl_status put_tensors(struct bl_gguf_writer *w)
{
    char name[64];
    BL_TRY(put_info(w, "token_embd.weight", EMBD, VOCAB));
    BL_TRY(put_info(w, "output_norm.weight", EMBD, 0));
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < N_LAYER_TENSORS; k++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer_tensor[k].stem);
            BL_TRY(put_info(w, name, layer_tensor[k].n_in, layer_tensor[k].n_out));
        }
    BL_TRY(put_data(w, EMBD, VOCAB, 2));
    BL_TRY(put_data(w, EMBD, 0, 1));
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < N_LAYER_TENSORS; k++)
            BL_TRY(put_data(w, layer_tensor[k].n_in, layer_tensor[k].n_out, 1.5));
    return BL_OK;
}

int main(int argc, char **argv)
{
    struct bl_gguf_writer *w = NULL;
    if (argc != 3) {
        printf("usage: make_ernie4_5 VOCABULARY.gguf OUT.gguf\n");
        return 2;
    }
    enum bl_status st = bl_gguf_writer_create(&w, argv[2], 32);
    if (!st && !(st = put_keys(w)) && !(st = put_vocabulary(w, argv[1])) &&
        !(st = put_tensors(w))) {
        st = bl_gguf_writer_finish(w);
        w = NULL;
    }
    bl_gguf_writer_abandon(w);
    if (st)
        printf("%s\n", bl_error());
    return st != BL_OK;
}
