/*
 * Tokenizer: byte-level BPE read from a Hugging Face `tokenizer.json`, giving the same ids and the same text
 * as the Hugging Face tokenizers library.
 *
 * What is read from the file, never assumed: added tokens with all their flags, normalizer (none, NFC,
 * Sequence), pre-tokenizer (Split with String or Regex, ByteLevel, Digits, Sequence), BPE vocabulary and
 * merges (both spellings), `ignore_merges`, post-processor (TemplateProcessing, ByteLevel, Sequence) and
 * decoder (ByteLevel, Fuse, Sequence). Anything else is refused at load with the key and the reason, so that
 * no prompt is ever tokenised approximately. It does not do: WordPiece, Unigram, byte fallback, dropout,
 * truncation, padding, chat templates (model/chat.h).
 *
 * Ownership: a tokenizer is made by sl_tokenizer_load/parse and freed by sl_tokenizer_destroy; strings it
 * returns live as long as it does. Threads: immutable after load; any number of threads may encode and decode
 * with one tokenizer at once. Stream decoders belong to one thread at a time.
 */
#ifndef SL_MODEL_TOKENIZER_H
#define SL_MODEL_TOKENIZER_H

#include "base/status.h"

typedef struct sl_tokenizer sl_tokenizer;

/* Flags of sl_tokenizer_encode. */
enum {
    SL_TOK_ADD_SPECIAL = 1, /* apply the post-processor's template (beginning-of-sequence and so on) */
    SL_TOK_NO_SPECIAL =
        2, /* text that spells a token marked special is ordinary text, as in the library; text of
                               strangers needs more: sl_tokenizer_encode_mixed() */
};

/* Bytes [start, end) of a text. */
typedef struct sl_tok_range {
    size_t start, end;
} sl_tok_range;

/*
 * Reads `path`: a tokenizer.json, or a directory that holds one. The bos and eos tokens are read from a
 * tokenizer_config.json in the same folder. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO (cannot read), SL_ERR_INVALID
 * (broken: file, key and reason in err), SL_ERR_UNSUPPORTED (valid, but a component that is not implemented),
 * SL_ERR_NO_MEMORY.
 */
sl_status sl_tokenizer_load(const char *path, sl_tokenizer **out, sl_err *err);
/* The same from memory; `name` is what errors call the file. `json` is not kept. */
sl_status sl_tokenizer_parse(const char *json, size_t len, const char *name, sl_tokenizer **out, sl_err *err);
void sl_tokenizer_destroy(sl_tokenizer *t);

/*
 * Text (UTF-8, `len` bytes, NUL allowed) to ids. *ids is a malloc'ed array of *n (NULL when *n is 0), freed
 * by the caller. O(len log len) for any text. Errors: SL_ERR_INVALID names the byte offset of invalid UTF-8;
 * SL_ERR_NO_MEMORY.
 */
sl_status sl_tokenizer_encode(const sl_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, size_t *n, sl_err *err);

/*
 * The same for a text of which the bytes in plain[0..n_plain), ascending and disjoint, are ordinary text whatever they
 * spell: no added token that touches one of them is recognised, marked special or not, unless it consists of white
 * space. So a stranger's text inside a template neither contains nor completes a token that structures the prompt. What
 * spells no added token gets the same ids as from sl_tokenizer_encode(). A normalizer sees each range by itself.
 */
sl_status sl_tokenizer_encode_mixed(const sl_tokenizer *t, const char *text, size_t len, unsigned flags,
                                    const sl_tok_range *plain, size_t n_plain, int32_t **ids, size_t *n,
                                    sl_err *err);

/*
 * Ids to text: *text is malloc'ed, *len bytes plus a NUL. Always valid UTF-8: bytes that form none become
 * U+FFFD, one for each maximal broken piece. Ids outside the vocabulary yield nothing. skip_special leaves
 * special tokens out.
 */
sl_status sl_tokenizer_decode(const sl_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              char **text, size_t *len);

/* The bytes a token decodes to (may be half a character); NULL and 0 for an id without a token. */
const char *sl_tokenizer_piece(const sl_tokenizer *t, int32_t id, size_t *len);
/* The token as the vocabulary spells it (UTF-8, NUL-terminated), or NULL. */
const char *sl_tokenizer_token(const sl_tokenizer *t, int32_t id);
/* Id of a token spelt as in the vocabulary (added tokens first), or -1. */
int32_t sl_tokenizer_id(const sl_tokenizer *t, const char *token, size_t len);
/* 1 + the largest id that has a token. The model's own vocabulary may be larger (padding). */
int32_t sl_tokenizer_vocab_size(const sl_tokenizer *t);
/* True for added tokens marked special. */
bool sl_tokenizer_is_special(const sl_tokenizer *t, int32_t id);
bool sl_tokenizer_is_added(const sl_tokenizer *t, int32_t id);
/* From tokenizer_config.json; -1 when there is none or it names no known token. */
int32_t sl_tokenizer_bos(const sl_tokenizer *t);
int32_t sl_tokenizer_eos(const sl_tokenizer *t);

/*
 * Streaming decoder: feeds one token at a time and emits only whole characters, so that the concatenation of
 * all that is emitted, flush included, equals sl_tokenizer_decode of all the ids. A plain value:
 * zero-initialise, copy freely.
 */
typedef struct sl_detok {
    unsigned char tail[4]; /* start of a character whose end has not come yet */
    unsigned n_tail;
} sl_detok;

/* Longest text one token can add: out must hold sl_detok_bound(t) bytes. */
size_t sl_detok_bound(const sl_tokenizer *t);
/* Returns the number of bytes written to out (0 while a character is incomplete). */
size_t sl_detok_push(sl_detok *d, const sl_tokenizer *t, int32_t id, bool skip_special, char *out);
/* Ends the stream: writes U+FFFD (3 bytes) if a character was left incomplete; returns 0 or 3; resets d. */
size_t sl_detok_flush(sl_detok *d, char *out);

#endif
