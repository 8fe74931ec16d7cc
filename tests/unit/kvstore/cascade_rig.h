/*
 * A worker without a worker, for tests of the cascade: it makes pages, keeps their checksums, answers the cascade's questions for
 * checksums, and reserves pages as a request does. Every page's bytes follow from its prefix, so each page that a request gets
 * from the tree is compared with what it must contain. One store and one cascade at a time; one thread.
 */
#ifndef TESTS_KVSTORE_CASCADE_RIG_H
#define TESTS_KVSTORE_CASCADE_RIG_H

#include "kvstore/cascade.h"
#include "kvstore/page_key.h"
#include "tests/unit/kvstore/fault_tier.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { PAGE = SL_KEY_PAGE_TOKENS, LAYERS = 2, PAGES = 32, LONGEST = PAGES + 1, JOBS = 64 };

typedef enum { MEMORY, DISK } rig_kind;

/* A question of the cascade that was not answered yet. */
typedef struct rig_asked {
    sl_cascade_job *job;
    const uint32_t *crc; /* NULL: the kept ones are wanted */
    int32_t pages[PAGES], n;
} rig_asked;

typedef struct cascade_rig {
    sl_arena *arena;
    sl_store *store;
    sl_tier *tier, *second; /* as the cascade has them; NULL: there is no second one */
    sl_cascade *cascade;
    uint32_t kept[PAGES][LAYERS];
    rig_asked jobs[JOBS];
    int n_jobs;
    bool refuse_jobs;                                     /* no question is taken */
    int stored[SL_CASCADE_TIERS], gone[SL_CASCADE_TIERS]; /* pages, as the cascade has told */
} cascade_rig;

extern cascade_rig rig;
extern const sl_key rig_seed;

typedef struct rig_setting {
    rig_kind tier;
    sl_cascade_policy policy;
    const faults *faults;
    bool second_use;
    uint32_t timeout_ms; /* of a load; 0: 60 s */
    /* a second tier in memory, after the first one */
    struct {
        bool is;
        sl_cascade_policy policy;
        const faults *faults;
        uint32_t timeout_ms;
    } second;
    int32_t chunk_pages;
    int32_t capacity; /* of the first tier, pages; 0: more than is ever stored */
} rig_setting;

/* A request that waits for the tier. */
typedef struct rig_waiting {
    sl_cascade_waiter w; /* first member */
    bool ready;
    int32_t begun; /* pages, as it was told */
} rig_waiting;

void rig_make_store(sl_layout layout);
void rig_open_cascade(const rig_setting *s);
/* Both, with layer_first. */
void rig_open_all(const rig_setting *s);
void rig_close_store(void);
/* The cascade, the store and the tier's directory. */
void rig_close_all(void);

sl_cascade_stats rig_stats(void);
sl_cascade_stats rig_second_stats(void);
void rig_answer_all(void);
/* Takes what the cascade has to tell the requests that wait. */
void rig_news(void);
/* One turn of the cascade at this time, and its news. */
void rig_tick(uint64_t now_ns);
/* One turn of the worker; the store is checked. */
void rig_turn(void);
/* Turns until nothing is in flight. */
void rig_settle(void);

/* LONGEST pages of tokens, valid until the next call; prompts of one family have their first `shared` pages in common. */
const int32_t *rig_prompt(int family, int shared, int own);
/*
 * A request of n full pages and one more token: checks the pages that matched, "computes" the others, publishes. Returns the number
 * of pages that matched, or -1: there was no room.
 */
int rig_request_now(const int32_t *tokens, int n);
/* The same, but it waits for the tier first, as a worker does. */
int rig_request(const int32_t *tokens, int n);
/* Random requests of four families, with and without waiting, turns between them, and a flush from time to time.
 * state: of rnd_below(). */
void rig_traffic(uint64_t *state, int requests);
/* Asks the cascade whether such a request should wait. */
bool rig_wait_for(rig_waiting *w, const int32_t *tokens, int n);

#endif
