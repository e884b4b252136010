/* SPDX-License-Identifier: MIT */
/* seed_gguf FOLDER: writes the seed corpus of fuzz_gguf: small valid files of every feature, so
 * that the fuzzer starts behind the magic. */
#include "gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *folder;

static void save(struct gb *b, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gb_save(b, path);
    gb_finish(b);
}

static void seed_small(void)
{
    struct gb b = {0};
    struct gb_marks m;
    gb_small(&b, &m);
    save(&b, "small");
    gb_small(&b, &m);
    gb_bytes(&b, "trailing", 8);
    save(&b, "trailing");
    gb_small(&b, &m);
    gb_set(&b, m.version, 4, 2);
    save(&b, "version2");
    gb_header(&b, 0, 0);
    save(&b, "empty");
}

/* One file for each value type, scalar and array. */
static void seed_values(void)
{
    static const unsigned char n_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char name[32];
    for (uint32_t type = 0; type <= GB_F64; type++) {
        struct gb b = {0};
        if (type == GB_ARRAY)
            continue;
        gb_header(&b, 0, 2);
        for (int array = 0; array < 2; array++) {
            if (array)
                gb_array(&b, "a", type, 2);
            else
                gb_key(&b, "k", type);
            for (int i = 0; i <= array; i++)
                if (type == GB_STRING)
                    gb_str(&b, "ab");
                else
                    gb_int(&b, n_bytes[type], 1);
        }
        snprintf(name, sizeof name, "value%u", (unsigned)type);
        save(&b, name);
    }
}

/* One file for each tensor type, known and retired ids alike: 256 elements, room for the largest.
 */
static void seed_tensors(void)
{
    char name[32];
    for (uint32_t type = 0; type < 44; type++) {
        struct gb b = {0};
        gb_header(&b, 1, 1);
        gb_kv_int(&b, "general.alignment", GB_U32, 8);
        gb_tensor(&b, "t", 1 + type % 4, (uint64_t[]){256, 1, 1, 1}, type, 0);
        gb_pad(&b, 8);
        gb_zeros(&b, 2048);
        snprintf(name, sizeof name, "tensor%u", (unsigned)type);
        save(&b, name);
    }
}

static void save_pair(struct gb *one, struct gb *two, const char *name)
{
    struct gb b = {0};
    gb_bytes(&b, "SPLT", 4);
    gb_int(&b, 4, one->n);
    gb_bytes(&b, one->p, one->n);
    gb_bytes(&b, two->p, two->n);
    gb_finish(one);
    gb_finish(two);
    save(&b, name);
}

static void seed_shards(void)
{
    struct gb one = {0}, two = {0};
    gb_shard(&one, &(struct gb_shard){0, 2, 2, 0, 0});
    gb_shard(&two, &(struct gb_shard){1, 2, 2, 0, 2});
    save_pair(&one, &two, "shards");
    gb_shard(&one, &(struct gb_shard){0, 2, 3, 0, 1});
    gb_shard(&two, &(struct gb_shard){1, 2, 3, 1, 2});
    save_pair(&one, &two, "shards-data");
    gb_shard(&one, &(struct gb_shard){0, 2, 3, 0, 2});
    gb_shard(&two, &(struct gb_shard){1, 2, 3, 1, 1}); /* a name twice */
    save_pair(&one, &two, "shards-twice");
    gb_shard(&one, &(struct gb_shard){0, 2, 2, 0, 1});
    gb_shard(&one, &(struct gb_shard){1, 2, 2, 1, 1});
    save(&one, "glued");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: seed_gguf FOLDER\n");
        return 2;
    }
    folder = argv[1];
    mkdir(folder, 0777);
    seed_small();
    seed_values();
    seed_tensors();
    seed_shards();
    return 0;
}
