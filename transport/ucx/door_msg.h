/*
 * The messages of the greeting at a door (door.c), as bytes. Pure functions, so that they can be fuzzed.
 *
 *   offset  0  magic "SLUICEDR"
 *           8  version u16, kind u16
 *          12  bytes of the body u32, at most UX_DOOR_BODY_MAX
 *          16  CRC32C u32 over the 16 bytes before and the body
 *          20  body: status u16, port u16, nonce [32], proof [32], text (the rest)
 *
 * All numbers are little-endian. Other versions keep the first 20 bytes and may change the body, so that both sides can
 * report the two versions. Without a secret the caller sends KNOCK and the door ANSWER. With a secret the door answers
 * KNOCK by CHALLENGE, the caller answers CHALLENGE by PROOF, and the door sends ANSWER. Bytes that follow a message
 * before it was answered are an error.
 */
#ifndef SL_TRANSPORT_UCX_DOOR_MSG_H
#define SL_TRANSPORT_UCX_DOOR_MSG_H

#include "base/status.h"
#include "transport/proof.h"

enum {
    UX_DOOR_VERSION = 2,
    UX_DOOR_HEADER = 20,
    UX_DOOR_BODY_MAX = 192,
    UX_DOOR_MAX = UX_DOOR_HEADER + UX_DOOR_BODY_MAX,
};

typedef enum { UX_DOOR_KNOCK = 1, UX_DOOR_ANSWER, UX_DOOR_CHALLENGE, UX_DOOR_PROOF } ux_door_kind;
typedef enum {
    UX_DOOR_COME_IN,
    UX_DOOR_NOBODY_IN,
    UX_DOOR_BUSY,
    UX_DOOR_OTHER_VERSION,
    UX_DOOR_NO_PROOF
} ux_door_status;

typedef struct ux_door_msg {
    uint16_t version, kind;
    uint16_t status; /* answer: ux_door_status; when refused, text has the reason */
    uint16_t port;   /* knock: the port from which UCX will connect; answer: that of UCX's listener */
    uint8_t nonce[SL_PROOF_BYTES]; /* knock, challenge: the nonce of the sender */
    uint8_t proof[SL_PROOF_BYTES]; /* proof, answer: the proof of the sender; zeros without a secret */
    char text[UX_DOOR_BODY_MAX - 4 - 2 * SL_PROOF_BYTES + 1];
} ux_door_msg;

typedef enum {
    UX_DOOR_MORE,    /* the beginning of a message: read more */
    UX_DOOR_WHOLE,   /* *out is filled; if the version differs, only `version` and `kind` */
    UX_DOOR_FOREIGN, /* cannot become a message; *why has the reason */
} ux_door_parsed;

/*
 * Parses the n bytes that have arrived so far. *why is a static string, set for FOREIGN only. Decides as
 * early as the bytes allow: the first wrong byte of the magic is enough.
 */
ux_door_parsed ux_door_parse(const uint8_t *bytes, size_t n, ux_door_msg *out, const char **why);

/* Writes m (text is cut to what fits); returns the length. buf has UX_DOOR_MAX bytes. */
size_t ux_door_write(const ux_door_msg *m, uint8_t *buf);

#endif
