/*
 * Shared by the files that read tokenizer.json: tokenizer_load.c (the file, and typed access to its members),
 * tokenizer_vocab.c (the BPE model and the added tokens), tokenizer_parts.c (normalizer, pre-tokenizer,
 * post-processor, decoder).
 */
#ifndef SL_MODEL_TOKENIZER_LOAD_H
#define SL_MODEL_TOKENIZER_LOAD_H

#include <jansson.h>

#include "model/tokenizer_impl.h"

typedef struct tk_loader {
    sl_tokenizer *t;
    sl_err *err;     /* never NULL */
    bool byte_level; /* the pre-tokenizer ends in ByteLevel */
} tk_loader;

sl_status tk_no_memory(tk_loader *l);
/* The "type" of a component, "" if it has none. */
const char *tk_type(const json_t *obj);
/* obj[name] as a boolean; `fallback` when it is absent or null. */
sl_status tk_get_bool(tk_loader *l, const json_t *obj, const char *name, bool fallback, bool *out);
/* A token id within bounds. */
sl_status tk_get_id(tk_loader *l, const json_t *v, int32_t *out);

sl_status tk_load_model(tk_loader *l, const json_t *model, size_t n_added);
/* Call after the normalizer has been loaded: normalized tokens are matched in their normalized spelling. */
sl_status tk_load_added(tk_loader *l, const json_t *list);

sl_status tk_load_normalizer(tk_loader *l, const json_t *n);
sl_status tk_load_pretokenizer(tk_loader *l, const json_t *p);
sl_status tk_load_postprocessor(tk_loader *l, const json_t *p);
/* Checks that the decoder is implemented. Sets *bytes when it has a ByteLevel part. */
sl_status tk_check_decoder(tk_loader *l, const json_t *d, bool *bytes);

#endif
