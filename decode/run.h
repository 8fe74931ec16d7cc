/*
 * The batch and its steps: batch.c, prompts.c, residency.c. Engine thread.
 */
#ifndef SL_DECODE_RUN_H
#define SL_DECODE_RUN_H

#include "decode/stall.h"
#include "decode/tickets.h"
#include "worker/pace.h"

/* Tokens [first, end) of a prompt, which a step computes. */
typedef struct sl_prompt_part {
    sl_ticket *ticket;
    int32_t first, end;
} sl_prompt_part;

enum { SL_PROMPT_PARTS = 1024 }; /* the largest prefill.max_requests */

typedef struct sl_run {
    sl_ticket **batch; /* [max_batch] tickets of the current step; valid during a step only */
    sl_step_item
        *items; /* [max_batch + prompts.max_requests]: those of the batch, then the parts of prompts */
    struct {    /* of role both (prompts.c) */
        sl_prompt_part *part; /* [max_requests]; n_parts of the current step */
        int32_t n_parts;
        sl_prefill_turn *turn; /* [max_requests] */
        sl_pace pace;
        sl_pace_rate rate;
        sl_prefill_bound bound;
        sl_stall stall;
    } prompts;
    struct {
        uint64_t steps, tokens, prompt_tokens, spilled;
    } count;
} sl_run;

/* batch.c */
void sl_batch_admit(sl_decode *d);
/* The first token of a ticket that has just been verified. */
void sl_batch_first_token(sl_decode *d, sl_ticket *t);
/* RETRACTED: the router starts t again with the tokens that it has produced. Ends t. */
void sl_batch_retract(sl_decode *d, sl_ticket *t, const char *why);
/* One step of all running tickets; *worked: there were any. A failure ends the worker. */
sl_status sl_batch_step(sl_decode *d, bool *worked, sl_err *err);

/* The next token of t, whose tokens are all in its rows but the last one, or all of a prompt. False: t has failed. */
bool sl_batch_sample(sl_decode *d, sl_ticket *t, const float *logits, sl_msg_token *out);

/* prompts.c: role both; without it they do nothing */
sl_status sl_prompts_open(sl_decode *d, sl_err *err);
void sl_prompts_close(sl_decode *d);
/* Begins prompts that wait, while there are places and device memory. */
void sl_prompts_admit(sl_decode *d);
/* Puts the parts of the next step into e.items, after those of the `decoding` requests of the batch. Returns their number. */
int32_t sl_prompts_collect(sl_decode *d, int32_t decoding);
/* The step took `ns`; with parts of prompts or without. */
void sl_prompts_computed(sl_decode *d, int32_t decoding, uint64_t ns);
/* The step failed: so have its prompts. */
void sl_prompts_failed(sl_decode *d, sl_status st, const char *why);

/* residency.c */
/* t has its prompt's sequence, which is resident: it stays so while there is room, else it is spilled. Errors
 * as sl_residency_open(); t->seq is NULL then. */
sl_status sl_residency_adopt(sl_decode *d, sl_ticket *t, sl_err *err);
/* Spills the longest resident request for the sake of a prompt; false: there is none. */
bool sl_residency_give(sl_decode *d);
/* Opens the sequence of t, whose lease has `pages` pages, resident or with a hot buffer; sets t->seq. Errors as
 * the runner's open. May spill other tickets, and end those that cannot be spilled. */
sl_status sl_residency_open(sl_decode *d, sl_ticket *t, int32_t pages, sl_err *err);
/* The device has no page for t's next row. If t is resident, spills the longest resident request, which may be t, and
 * returns true: the caller looks for t again, since it may have ended, and tries again. */
bool sl_residency_relieve(sl_decode *d, const sl_ticket *t);
int32_t sl_residency_count(const sl_decode *d);

#endif
