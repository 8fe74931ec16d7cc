/* See keys.h. */
#include "kernels/cpu/keys.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/gqa.h"

/* The row of a token that has the key of this head; NULL: its page does not exist. */
static const uint8_t *row_of(const sl_key_source *s, int32_t head, int32_t token)
{
    const sl_row_shape shape = sl_row_shape_of(&s->rows);
    const int32_t page = s->pages[token / SL_PAGE_TOKENS], of_head = s->rows.heads > 0 ? head : 0;

    if (page < 0)
        return NULL;
    if (s->host.base)
        return s->host.base + page * s->host.page_stride +
               sl_block_in_page(&shape, token) * s->host.row_stride + of_head * s->rows.row_bytes;
    return s->rows.base + sl_pool_row(&shape, page, token, of_head) * s->rows.row_bytes;
}

bool sl_keys_part(const sl_key_source *s, int32_t head, int32_t token, int32_t from, int32_t n, float *key,
                  float *out)
{
    const int32_t slots = sl_gqa_row_slots(&s->rows, s->heads);
    const uint8_t *row = row_of(s, head, token);

    if (!row)
        return false;
    sl_gqa_key_decode(s->format, slots, s->dim, row, slots > 1 ? head : 0, key);
    memcpy(out, key + from, (size_t)n * sizeof *out);
    return true;
}

void sl_book_set(sl_book *b, const float *centroids, int64_t ld)
{
    for (int32_t c = 0; c < b->k; c++) {
        const float *from = centroids + c * ld;
        float *row = b->rows + (int64_t)c * b->dim;
        double square = 0;

        for (int32_t i = 0; i < b->dim; i++)
            square += (double)from[i] * (double)from[i];
        const double length = b->metric == SL_KMEANS_COSINE && square > 0 ? sqrt(square) : 1;
        for (int32_t i = 0; i < b->dim; i++)
            row[i] = (float)((double)from[i] / length);
        b->half[c] = b->metric == SL_KMEANS_L2 ? (float)(square / 2) : 0;
    }
}

void sl_nearest(const sl_book *b, const float *points, int32_t n, float *dots, int32_t *labels)
{
    sl_vec_products((sl_vec_rows){b->rows, b->dim, b->k}, (sl_vec_rows){points, b->dim, n}, b->dim, dots,
                    b->k);
    for (int32_t t = 0; t < n; t++) {
        const float *dot = dots + (int64_t)t * b->k;
        float best = dot[0] - b->half[0];

        labels[t] = 0;
        for (int32_t c = 1; c < b->k; c++)
            if (dot[c] - b->half[c] > best)
                best = dot[c] - b->half[c], labels[t] = c;
    }
}
