/*
 * Places of scores in their order (SL_GROUP_UNION), in O(n): a stable radix sort by the keys that top-k uses, eight bits at a
 * time. Stability is what gives equal scores to the smaller block.
 */
#include "kernels/cpu/group.h"

typedef struct order {
    uint32_t *key, *of; /* complements of keys, so that the largest score is first, and whose they are */
} order;

static void sort_byte(const order *from, const order *to, int32_t n, int shift)
{
    uint32_t at[256] = {0}, sum = 0;

    for (int32_t i = 0; i < n; i++)
        at[from->key[i] >> shift & 255]++;
    for (int b = 0; b < 256; b++) {
        uint32_t count = at[b];

        at[b] = sum;
        sum += count;
    }
    for (int32_t i = 0; i < n; i++) {
        uint32_t to_i = at[from->key[i] >> shift & 255]++;

        to->key[to_i] = from->key[i];
        to->of[to_i] = from->of[i];
    }
}

void sl_group_places(float *x, int32_t n, uint32_t *own)
{
    const order two[2] = {{own, own + n}, {own + 2 * (size_t)n, own + 3 * (size_t)n}};

    for (int32_t i = 0; i < n; i++) {
        two[0].key[i] = ~sl_score_key(x[i]);
        two[0].of[i] = (uint32_t)i;
    }
    for (int pass = 0; pass < 4; pass++)
        sort_byte(&two[pass % 2], &two[(pass + 1) % 2], n, 8 * pass);
    for (int32_t place = 0; place < n; place++)
        x[two[0].of[place]] = (float)-place;
}
