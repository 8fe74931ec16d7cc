/*
 * UTF-8 scanning, shared by the tokenizer, the stop matcher and the chat parser.
 *
 * Invalid bytes are replaced by the usual rule (Unicode 3.9, "maximal subpart"): the longest beginning of a valid
 * sequence becomes one U+FFFD, and the scan continues at the first byte that cannot belong to it. Pure functions.
 */
#ifndef SL_MODEL_TOKENIZER_UTF8_H
#define SL_MODEL_TOKENIZER_UTF8_H

#include "base/status.h"

typedef enum { SL_UTF8_CHAR, SL_UTF8_BROKEN, SL_UTF8_PARTIAL } sl_utf8_kind;

/* Classifies the bytes at p[0..n), n >= 1. *len: the number of bytes of the character, of the invalid sequence, or of
 * the incomplete character, which then reaches the end of the input. */
sl_utf8_kind sl_utf8_step(const unsigned char *p, size_t n, size_t *len);

/* Offset of the first byte that is not valid UTF-8, or n. */
size_t sl_utf8_valid_len(const char *text, size_t n);

/* Code point of a valid character at p. */
uint32_t sl_utf8_get(const unsigned char *p);
/* Writes a scalar value (not a surrogate) to out[4]; returns its length. */
size_t sl_utf8_put(uint32_t c, char *out);

#endif
