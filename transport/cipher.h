/*
 * Encryption of messages with a key that only the two sides of a connection know: AES-256-GCM. One sl_cipher is one
 * direction of one connection. Messages are numbered from 0, and the number is the nonce, so both sides must handle the
 * same messages in the same order: a message that is lost, repeated, moved or changed does not open.
 *
 * The creator frees it with sl_cipher_free(). One thread at a time.
 */
#ifndef SL_TRANSPORT_CIPHER_H
#define SL_TRANSPORT_CIPHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SL_CIPHER_KEY = 32, SL_CIPHER_TAG = 16 };

typedef struct sl_cipher sl_cipher;

/* seal: whether it will seal messages, or else open them. NULL: out of memory. */
sl_cipher *sl_cipher_new(const uint8_t key[SL_CIPHER_KEY], bool seal);
/* NULL is allowed. */
void sl_cipher_free(sl_cipher *c);

/*
 * Encrypts the next message: out gets n + SL_CIPHER_TAG bytes. The open bytes are not encrypted, but protected like the
 * message, and the other side must give the same ones. False: the library failed; the cipher must not be used again.
 */
bool sl_cipher_seal(sl_cipher *c, const void *open, size_t n_open, const void *data, size_t n, uint8_t *out);
/*
 * Decrypts the next message: n bytes with the tag at their end; out gets n - SL_CIPHER_TAG bytes and may be `data`.
 * False: it is not what the other side sealed; out is not to be read, and the cipher must not be used again.
 */
bool sl_cipher_open(sl_cipher *c, const void *open, size_t n_open, const uint8_t *data, size_t n,
                    uint8_t *out);

#endif
