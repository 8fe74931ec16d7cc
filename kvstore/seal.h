/*
 * Seals: the checksums that are kept for the full pages of an arena, one for each layer.
 *
 * A page is sealed once, when its rows are complete, and verified against that seal before it is handed to another
 * request. So bytes that were changed after the page was complete are found, whoever has changed them: a writer that
 * used pages which are not its own, a defect of the memory, a bug. The seals lie outside the arena, where no writer of
 * another process can reach them. What a seal cannot find: bytes that were wrong before it was made, and a change
 * between the verification and the use.
 *
 * A seal means the page's contents at the time of the last sl_seals_make() or sl_seals_keep(). The owner of the page
 * seals it again after it has written new rows; the store knows nothing of seals (kvstore/store.h).
 *
 * Threads: one owner thread. The pages of a call may not be written during the call. The arena is borrowed.
 */
#ifndef SL_KVSTORE_SEAL_H
#define SL_KVSTORE_SEAL_H

#include "kvstore/arena.h"

typedef struct sl_seals sl_seals;

/* Sampled verification reads one layer in this many of each page, other ones each time. */
enum { SL_SEAL_SAMPLE = 8 };

/* No page is sealed. SL_ERR_NO_MEMORY. 4 bytes for each page and layer. */
sl_status sl_seals_create(const sl_arena *arena, sl_seals **out);
/* NULL is fine. */
void sl_seals_destroy(sl_seals *s);
/* Seals a full page with the checksums of its present contents. */
void sl_seals_make(sl_seals *s, int32_t page);
/* Seals a full page with these checksums (crc[n_layers], of sl_arena_page_crc()); does not read the page. */
void sl_seals_keep(sl_seals *s, int32_t page, const uint32_t *crc);
/* crc[n_layers] of a sealed page; NULL: it is not sealed. */
const uint32_t *sl_seals_get(const sl_seals *s, int32_t page);
/* Layers of the page that differ from the seal, all of them for a page that is not sealed. sampled: reads one layer in
 * SL_SEAL_SAMPLE only, so a page that was overwritten is found, and a single changed byte one time in SL_SEAL_SAMPLE. */
int32_t sl_seals_verify(sl_seals *s, int32_t page, bool sampled);

#endif
