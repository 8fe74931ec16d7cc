/*
 * Lending: leases on pages of this worker's host store, which other workers read by get: decode workers
 * (pull.h is their side), and prefill workers that fetch a prefix while other pages of the prompt are still
 * being loaded (prefill/prefetch.c).
 *
 *   state     entered when             left when
 *   --------  -----------------------  ------------------------------------------------------------------------------
 *   waiting   LEASE_ASK with `wait`,   a load has brought the first page -> reading; no load may bring it any more: the
 *             a load may bring the     answer is that no page is lent; LEASE_END or DM_READER_GONE -> forgotten
 *             first page
 *   reading   LEASE_ASK, pages pinned  the checker has returned their kept checksums: LEASE is sent -> lent
 *   lent      LEASE is sent            LEASE_END -> released; end of its time -> the reader's connection is closed by
 *                                      force; DM_READER_GONE -> released
 *
 * The pages of a lease are pinned: they are neither evicted nor written, also when the cache is flushed. A lease is released
 * in two cases only: its reader says that no get is in flight, or its connection is closed by force and the transport has
 * reported it, after which no get of that reader can read here. The end of its time alone releases nothing.
 *
 * LEASE_DAMAGED: the reader found that pages do not have their kept checksums. The reader is not believed: the checker verifies
 * these pages here, once for each lease, and those that are damaged leave the prefix tree, so that no other request and no
 * other reader gets them. A page that the transport damaged is right here and stays.
 *
 * Bounds: LEASES, as many questions that wait, and one in SHARE pages of the store, so that readers do not take the memory of
 * running requests. While the worker drains it lends nothing; its end waits for the leases.
 */
#ifndef SL_DECODE_PAGES_LEND_H
#define SL_DECODE_PAGES_LEND_H

#include "decode/pages/damage.h"

typedef struct sl_lends sl_lends;

/* NULL: out of memory. */
sl_lends *sl_lends_new(sl_pages_env *e, sl_damage *damage);
/* The threads have ended. */
void sl_lends_free(sl_lends *s);
/* Messages of readers. The first one owns m. */
void sl_lend_ask(sl_lends *s, sl_wmsg *m);
void sl_lend_end(sl_lends *s, const sl_wmsg *m);
void sl_lend_damaged(sl_lends *s, const sl_wmsg *m);
/* An answer of the checker whose tag is CHECK_LEND. */
void sl_lend_checked(sl_lends *s, sl_check *k);
void sl_lend_reader_gone(sl_lends *s, uint32_t ep_serial);
/* Closes the connections of the readers whose time has ended; returns the next such time. */
uint64_t sl_lend_tick(sl_lends *s, uint64_t now);
void sl_lend_stats_get(const sl_lends *s, sl_lend_stats *out);

#endif
