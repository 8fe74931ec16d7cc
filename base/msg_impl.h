/*
 * The codec of messages. There is one description for each type, which serves both directions: sl_mf_of_reserve(c, m)
 * writes the struct when the codec has a writer and fills it when the codec has a reader. So what one side writes is
 * always what the other side reads. msg_fields.c has the kinds of fields, msg_requests.c and msg_workers.c the
 * descriptions, msg_codec.c the way from a type to its description, msg_names.c the names for logs.
 *
 * The decoder must be safe for any input: every count is compared with the bytes that are present before anything is
 * allocated (base/wire.h), enumerations and bounds between fields are checked after each field, and the first wrong field is
 * named in the error. The receiver checks what the fields mean: whether the rid is known, whether the page is its own.
 */
#ifndef BASE_MSG_IMPL_H
#define BASE_MSG_IMPL_H

#include "base/msg.h"

enum {
    SL_MSG_PAGE_TOKENS = 64,
    SL_MSG_KEY_BYTES = 16,
};

/* Exactly one of w and r is set. `field` is the first field that failed. */
typedef struct sl_codec {
    sl_wr *w;
    sl_rd *r;
    const char *field;
    bool bad;
} sl_codec;

/* The field is wrong; nothing more is read. sl_mf_require() says so when a reader has read what is not ok. */
void sl_mf_fail(sl_codec *c, const char *field);
void sl_mf_require(sl_codec *c, const char *field, bool ok);
/* Pages that this number of tokens takes. */
size_t sl_mf_pages_of(size_t tokens);

/* ---- kinds of fields ---- */

void sl_mf_u8(sl_codec *c, const char *field, uint8_t *v);
void sl_mf_u32(sl_codec *c, const char *field, uint32_t *v);
void sl_mf_u64(sl_codec *c, const char *field, uint64_t *v);
void sl_mf_i32(sl_codec *c, const char *field, int32_t *v);
void sl_mf_f32(sl_codec *c, const char *field, float *v);
void sl_mf_str(sl_codec *c, const char *field, char *s, size_t cap);
/* Of at most SL_MSG_MAX_BLOB bytes; a reader points into the message. */
void sl_mf_blob(sl_codec *c, const char *field, sl_blob *b);
/* Arrays, which a reader allocates and sl_msg_free() frees. */
void sl_mf_i32s(sl_codec *c, const char *field, int32_t **v, size_t *n, size_t max);
void sl_mf_u32s(sl_codec *c, const char *field, uint32_t **v, size_t *n, size_t max);
void sl_mf_key(sl_codec *c, const char *field, sl_key *k);
/* 0 or 1. */
void sl_mf_flag(sl_codec *c, const char *field, uint8_t *v);
void sl_mf_request(sl_codec *c, uint64_t *rid, uint32_t *attempt);
void sl_mf_identity(sl_codec *c, sl_identity *id);
void sl_mf_token(sl_codec *c, const char *field, sl_msg_token *t);
/* Prompt, sampling and seed: the same in RESERVE and PREFILL. */
void sl_mf_prompt(sl_codec *c, uint32_t *n_prompt, int32_t **tokens, size_t *n_tokens);
/* Zero means "none": a sender that forgot the seed would let everybody share. */
void sl_mf_seed(sl_codec *c, const char *field, sl_key *seed);

/* ---- descriptions ---- */

void sl_mf_of_hello(sl_codec *c, sl_msg_hello *m);
void sl_mf_of_welcome(sl_codec *c, sl_msg_welcome *m);
void sl_mf_of_refuse(sl_codec *c, sl_msg_refuse *m);
void sl_mf_of_load(sl_codec *c, sl_msg_load *m);
void sl_mf_of_reserve(sl_codec *c, sl_msg_reserve *m);
void sl_mf_of_prefetch(sl_codec *c, sl_msg_prefetch *m);
void sl_mf_of_reserved(sl_codec *c, sl_msg_reserved *m);
void sl_mf_of_prefill(sl_codec *c, sl_msg_prefill *m);
void sl_mf_of_prefilled(sl_codec *c, sl_msg_prefilled *m);
void sl_mf_of_joined(sl_codec *c, sl_msg_joined *m);
void sl_mf_of_failed(sl_codec *c, sl_msg_failed *m);
void sl_mf_of_peer_hello(sl_codec *c, sl_msg_peer_hello *m);
void sl_mf_of_peer_welcome(sl_codec *c, sl_msg_peer_welcome *m);
void sl_mf_of_commit(sl_codec *c, sl_msg_commit *m);
void sl_mf_of_tokens(sl_codec *c, sl_msg_tokens *m);
void sl_mf_of_done(sl_codec *c, sl_msg_done *m);
void sl_mf_of_retracted(sl_codec *c, sl_msg_retracted *m);
void sl_mf_of_abort(sl_codec *c, sl_msg_abort *m);
void sl_mf_of_kv_events(sl_codec *c, sl_msg_kv_events *m);
void sl_mf_of_pages_ask(sl_codec *c, sl_msg_pages_ask *m);
void sl_mf_of_pages_crc(sl_codec *c, sl_msg_pages_crc *m);
void sl_mf_of_lease_ask(sl_codec *c, sl_msg_lease_ask *m);
void sl_mf_of_loading(sl_codec *c, sl_msg_loading *m);
void sl_mf_of_lease(sl_codec *c, sl_msg_lease *m);
void sl_mf_of_lease_damaged(sl_codec *c, sl_msg_lease_damaged *m);
void sl_mf_of_group_join(sl_codec *c, sl_msg_group_join *m);
void sl_mf_of_group(sl_codec *c, sl_msg_group *m);
void sl_mf_of_cache_ask(sl_codec *c, sl_msg_cache_ask *m);
void sl_mf_of_cache_pages(sl_codec *c, sl_msg_cache_pages *m);
void sl_mf_of_cache_job(sl_codec *c, sl_msg_cache_job *m);

#endif
