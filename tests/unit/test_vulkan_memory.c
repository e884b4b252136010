/* SPDX-License-Identifier: MIT */
/* Where blocks lie on devices of all kinds, by the memory types that their drivers tell of. */
#include "support.h"

#include "vulkan/vk_device.h"

enum {
    NEAR = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
    SEEN = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    CACHED = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    LAZY = VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT,
    NONE = 99
};
#define GIB(n) ((uint64_t)(n) << 30)

/* As drivers have them. own, seen: types of blocks of the device's own and of those that the host
 * sees, the best first. */
static const struct kind {
    const char *name;
    bool integrated;
    uint64_t heap[3];
    struct {
        uint32_t flags, heap;
    } type[8];
    uint32_t own[4], seen[4];
    uint64_t bytes;
} kinds[] = {
    {"a card with a window of 256 MiB",
     false,
     {GIB(24), GIB(32), 256 << 20},
     {{NEAR, 0}, {SEEN, 1}, {NEAR | SEEN, 2}, {SEEN | CACHED, 1}},
     {0, 2, NONE},
     {2, 1, 3, NONE},
     GIB(24)},
    {"a card of which the host sees all",
     false,
     {GIB(16), GIB(32)},
     {{0, 1}, {NEAR, 0}, {SEEN, 1}, {SEEN | CACHED, 1}, {NEAR | SEEN, 0}},
     {1, 4, NONE},
     {4, 2, 3, NONE},
     GIB(16)},
    {"a card of which the host sees nothing",
     false,
     {GIB(8), GIB(16)},
     {{NEAR, 0}, {SEEN, 1}, {SEEN | CACHED, 1}},
     {0, NONE},
     {1, 2, NONE},
     GIB(8)},
    {"in the package, half carved out",
     true,
     {GIB(40), GIB(20)},
     {{NEAR, 0}, {SEEN, 1}, {NEAR | SEEN, 0}, {SEEN | CACHED, 1}},
     {0, 2, 1, 3},
     {2, 1, 3, NONE},
     GIB(60)},
    {"in the package, one heap",
     true,
     {GIB(30)},
     {{NEAR | SEEN | CACHED, 0}, {NEAR | SEEN, 0}, {NEAR | LAZY, 0}},
     {0, 1, NONE},
     {0, 1, NONE},
     GIB(30)},
};

static VkPhysicalDeviceMemoryProperties properties(const struct kind *k)
{
    VkPhysicalDeviceMemoryProperties m = {.memoryTypeCount = 0};

    for (; m.memoryHeapCount < 3 && k->heap[m.memoryHeapCount]; m.memoryHeapCount++)
        m.memoryHeaps[m.memoryHeapCount].size = k->heap[m.memoryHeapCount];
    for (uint32_t t = 0; t < 8 && (k->type[t].flags || k->type[t].heap); t++)
        m.memoryTypes[m.memoryTypeCount++] = (VkMemoryType){k->type[t].flags, k->type[t].heap};
    return m;
}

static void blocks_lie_where_they_should(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(kinds); i++) {
        const struct kind *k = &kinds[i];
        const VkPhysicalDeviceMemoryProperties m = properties(k);
        for (unsigned seen = 0; seen < 2; seen++) {
            const uint32_t *want = seen ? k->seen : k->own;
            uint32_t order[VK_MAX_MEMORY_TYPES] = {0}, n_want = 0;
            while (n_want < 4 && want[n_want] != NONE)
                n_want++;
            const uint32_t n = bl_vk_memory_order(&m, k->integrated, seen, UINT32_MAX, order);
            if (n != n_want || memcmp(order, want, n * sizeof *order) != 0)
                fail_msg("%s, %s: %u types, first %u", k->name, seen ? "seen" : "own", n, order[0]);
            assert_int_equal(bl_vk_memory_order(&m, k->integrated, seen, 0, order), 0);
        }
    }
}

/* Of a card its memory, of what is in the package all that it reaches. */
static void sizes_are_those_of_the_heaps(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(kinds); i++) {
        struct bl_vk_facts f = {.integrated = kinds[i].integrated, .memory = properties(&kinds[i])};
        uint64_t all, left;
        bl_vk_memory_sum(&f, &all, &left);
        if (all != kinds[i].bytes || left)
            fail_msg("%s: %llu bytes", kinds[i].name, (unsigned long long)all);
        for (uint32_t h = 0; h < f.memory.memoryHeapCount; h++)
            f.budget_bytes[h] = f.memory.memoryHeaps[h].size / 2;
        bl_vk_memory_sum(&f, &all, &left);
        assert_true(left == all / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_lie_where_they_should),
        cmocka_unit_test(sizes_are_those_of_the_heaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
