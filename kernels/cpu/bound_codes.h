/*
 * Bounds of int8 (kernels/bounds.h): the codes of a unit, and the products of integer queries with them. Pure functions, any
 * thread. dim is a multiple of SL_BOUNDS_GROUP; a unit is 2 * dim codes and its exponents.
 */
#ifndef SL_KERNELS_CPU_BOUND_CODES_H
#define SL_KERNELS_CPU_BOUND_CODES_H

#include "kernels/bounds.h"

/* Widens the bounds of a unit by one key, and writes all its bytes. first: the unit has no bounds yet. */
void sl_bound_codes_widen(const float *k, int32_t dim, bool first, uint8_t *unit);

/* A query as integers: positive[dim] and negative[dim], of which one is 0; the query is about (positive + negative) *
 * scale. Returns the scale. */
float sl_bound_query(const float *q, int32_t dim, int16_t *positive, int16_t *negative);

/* The bound of one query and one unit. */
float sl_bound_product(const int16_t *positive, const int16_t *negative, float scale, int32_t dim,
                       const uint8_t *unit);

#endif
