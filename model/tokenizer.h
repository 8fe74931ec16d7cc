/*
 * Tokenizer: byte-level BPE read from a Hugging Face `tokenizer.json`. It gives the same ids and the same text as the
 * Hugging Face tokenizers library.
 *
 * All of this is read from the file: added tokens with all their flags, normalizer (none, NFC, Sequence), pre-tokenizer
 * (Split with String or Regex, ByteLevel, Digits, Sequence), BPE vocabulary and merges (both spellings),
 * `ignore_merges`, post-processor (TemplateProcessing, ByteLevel, Sequence) and decoder (ByteLevel, Fuse, Sequence).
 * Anything else is refused at load with the key and the reason, so that no prompt gets wrong ids. Not implemented:
 * WordPiece, Unigram, byte fallback, dropout, truncation, padding. Chat formats are in model/chat.h.
 *
 * Ownership: a tokenizer is made by sl_tokenizer_load() or sl_tokenizer_parse() and freed by sl_tokenizer_destroy();
 * the strings that it returns live as long as it does. Threads: a tokenizer does not change after load, so any number
 * of threads may encode and decode with it concurrently. A stream decoder belongs to one thread at a time.
 */
#ifndef SL_MODEL_TOKENIZER_H
#define SL_MODEL_TOKENIZER_H

#include "base/guard.h"

typedef struct sl_tokenizer sl_tokenizer;

/* Flags of sl_tokenizer_encode. */
enum {
    SL_TOK_ADD_SPECIAL = 1, /* apply the post-processor's template (beginning-of-sequence and so on) */
    /* Text that spells a token marked special is encoded as ordinary text, as in the Hugging Face library. For text of
     * clients that is not enough, see sl_tokenizer_encode_mixed(). */
    SL_TOK_NO_SPECIAL = 2,
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
/* The same from memory; errors name it `name`. `json` is not kept. */
sl_status sl_tokenizer_parse(const char *json, size_t len, const char *name, sl_tokenizer **out, sl_err *err);
void sl_tokenizer_destroy(sl_tokenizer *t);

/*
 * Encodes `len` bytes of UTF-8 text, in which NUL is allowed. *ids is a malloc'ed array of *n ids, freed by the caller;
 * NULL when *n is 0. O(len log len) for any text. Errors: SL_ERR_INVALID names the offset of the first byte that is not
 * valid UTF-8; SL_ERR_TOO_LARGE; SL_ERR_NO_MEMORY.
 */
sl_status sl_tokenizer_encode(const sl_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, size_t *n, sl_err *err);

/*
 * The same for a text in which the bytes of plain[0..n_plain), ascending and disjoint ranges, are ordinary text
 * whatever they spell: an added token that contains one of these bytes is not recognised, whether it is special or not,
 * unless it consists of white space. So a client's text inside a format neither contains nor completes a token that
 * structures the prompt. Text that spells no added token gets the same ids as by sl_tokenizer_encode(). A normalizer is
 * applied to each range separately.
 */
sl_status sl_tokenizer_encode_mixed(const sl_tokenizer *t, const char *text, size_t len, unsigned flags,
                                    const sl_tok_range *plain, size_t n_plain, int32_t **ids, size_t *n,
                                    sl_err *err);

/* A text and the conditions under which it is encoded. */
typedef struct sl_tok_input {
    const char *text;
    size_t len;
    unsigned flags;
    const sl_tok_range *plain; /* as in sl_tokenizer_encode_mixed() */
    size_t n_plain;
    size_t max_ids;  /* a text of more ids is refused, before it is looked at if it cannot have fewer */
    sl_guard *guard; /* all memory is taken from it, that of *ids stays taken; may be NULL */
} sl_tok_input;

/*
 * The same under a guard. The time is O(len log len) for any text and any normalizer, and for any pattern of the
 * pre-tokenizer that does not backtrack over the same text again and again. Errors as above, and TOO_LARGE: more than
 * max_ids; EXHAUSTED: the guard has no room; CANCELLED: it was stopped, which is looked at every few thousand pieces.
 */
sl_status sl_tokenizer_encode_input(const sl_tokenizer *t, const sl_tok_input *in, int32_t **ids, size_t *n,
                                    sl_err *err);

/*
 * Decodes ids: *text is malloc'ed, *len bytes and a NUL. The text is always valid UTF-8: each maximal sequence of bytes
 * that is not valid becomes one U+FFFD. Ids outside the vocabulary add no text. skip_special: special tokens add no
 * text.
 */
sl_status sl_tokenizer_decode(const sl_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              char **text, size_t *len);

/* The bytes to which a token decodes, perhaps a part of a character; NULL and 0 for an id without a token. */
const char *sl_tokenizer_piece(const sl_tokenizer *t, int32_t id, size_t *len);
/* The token as the vocabulary spells it (UTF-8, NUL-terminated), or NULL. */
const char *sl_tokenizer_token(const sl_tokenizer *t, int32_t id);
/* The id of a token, which is spelled as in the vocabulary; -1: there is none. Added tokens are looked up first. */
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
 * Streaming decoder: takes one token at a time and emits complete characters only. The concatenation of everything that
 * it emits, including the flush, equals sl_tokenizer_decode() of all ids. A plain value: initialise it with zeros; it
 * may be copied.
 */
typedef struct sl_detok {
    unsigned char tail[4]; /* the first bytes of an incomplete character */
    unsigned n_tail;
} sl_detok;

/* The length of the longest text that one token can add; `out` must have room for it. */
size_t sl_detok_bound(const sl_tokenizer *t);
/* Returns the number of bytes written to out (0 while a character is incomplete). */
size_t sl_detok_push(sl_detok *d, const sl_tokenizer *t, int32_t id, bool skip_special, char *out);
/* Ends the stream and resets d: writes U+FFFD, 3 bytes, if the last character is incomplete. Returns 0 or 3. */
size_t sl_detok_flush(sl_detok *d, char *out);

#endif
