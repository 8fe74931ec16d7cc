/*
 * Seals: the checksums that are kept for the full pages of an arena, one for each layer.
 *
 * A page is sealed once, when its rows are complete, and verified against that seal before it is handed to another
 * request. This finds bytes that have changed after the page was complete, whatever the cause: a writer that used pages
 * of another request, defective memory, a bug. The seals are not in the arena, so no writer in another process can
 * change them. A seal finds neither bytes that were wrong before it was made, nor a change between verification and
 * use.
 *
 * A seal stands for the page's contents at the time of the last sl_seals_make() or sl_seals_keep(). The owner of the
 * page seals it again after it has written new rows; the store knows nothing of seals (kvstore/store.h).
 *
 * Threads: one owner thread. The pages of a call may not be written during the call. The arena is borrowed.
 */
#ifndef SL_KVSTORE_SEAL_H
#define SL_KVSTORE_SEAL_H

#include "kvstore/arena.h"

typedef struct sl_seals sl_seals;

/* Sampled verification reads one in SL_SEAL_SAMPLE layers of a page, chosen at random each time. */
enum { SL_SEAL_SAMPLE = 8 };

/* Initially no page is sealed. Needs 4 bytes for each page and layer. SL_ERR_NO_MEMORY. */
sl_status sl_seals_create(const sl_arena *arena, sl_seals **out);
/* NULL is allowed. */
void sl_seals_destroy(sl_seals *s);
/* Seals a full page with the checksums of its present contents. */
void sl_seals_make(sl_seals *s, int32_t page);
/* Seals a full page with these checksums (crc[n_layers], of sl_arena_page_crc()); does not read the page. */
void sl_seals_keep(sl_seals *s, int32_t page, const uint32_t *crc);
/* crc[n_layers] of a sealed page; NULL: it is not sealed. */
const uint32_t *sl_seals_get(const sl_seals *s, int32_t page);
/* The number of layers that differ from the seal; all layers for a page that is not sealed. sampled: reads only one in
 * SL_SEAL_SAMPLE layers; that finds a page that was overwritten, and a single changed byte in one of SL_SEAL_SAMPLE
 * verifications. */
int32_t sl_seals_verify(sl_seals *s, int32_t page, bool sampled);

#endif
