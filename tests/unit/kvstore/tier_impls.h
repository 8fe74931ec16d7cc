/*
 * The registered tiers, as the conformance suite opens them: a tier that needs more than its size has a line in OPENED of
 * tier_impls.c, which says how. A new tier with options must get one, and the suite says so.
 */
#ifndef SL_TEST_TIER_IMPLS_H
#define SL_TEST_TIER_IMPLS_H

#include "kvstore/tier.h"

/* Pages for which a tier has room that has a size of its own; shared ones have more. */
enum { TIER_PAGE_BYTES = 4096, TIER_PAGES = 8, TIER_KEYS = 32 };

/* Finds those that can be tested here, starts what they need, and names the others with the reason. Returns how many there are. */
int tier_impls_find(void);
const sl_tier_ops *tier_impl(int i);
/* Room for TIER_PAGES pages, and for the disk tier segments of one page, so that it evicts single pages. Valid until the next call for
 * the same tier; names in shared stores are others each time. */
sl_tier_opts tier_impl_options(const sl_tier_ops *ops);
/* Makes the folder in which it is opened, empty. */
void tier_impl_folder(const sl_tier_ops *ops);
/* Removes what it has left there. */
void tier_impl_remove(const sl_tier_ops *ops);
/* Ends what tier_impls_find() has started. */
void tier_impls_stop(void);

#endif
