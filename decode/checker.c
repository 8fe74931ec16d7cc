/*
 * The checker thread computes the checksums of arrived pages, so that the arrival of a long prompt does not delay the
 * steps of the batch on the engine thread. It reads the arena and the job, nothing else.
 */
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"

void sl_check_free(sl_check *c)
{
    if (!c)
        return;
    sl_wmsg_free(c->m);
    free(c->pages);
    free(c->crc);
    free(c);
}

static void check(const sl_decode *d, sl_check *c)
{
    size_t layers = (size_t)d->geo->n_layers;
    bool compare = c->m->msg.type == SL_MSG_COMMIT;
    for (size_t i = 0; i < c->n_crc; i++) {
        int32_t page = (int32_t)(i / layers), n = page == c->n_pages - 1 ? c->last_tokens : SL_PAGE_TOKENS;
        uint32_t crc = sl_arena_page_crc(d->o.role.arena, c->pages[page], (int32_t)(i % layers), n);
        if (!compare)
            c->crc[i] = crc;
        else
            c->bad += crc != c->m->msg.commit.crc[i];
    }
}

static void *checker_main(void *arg)
{
    sl_decode *d = arg;
    for (;;) {
        sl_wmail *m = (sl_wmail *)sl_mailbox_take(d->checker.inbox);
        if (!m) {
            sl_mailbox_wait(d->checker.inbox, -1);
            continue;
        }
        if (m->kind == DM_CHECKER_STOP)
            return NULL;
        check(d, (sl_check *)m);
        m->kind = DM_CHECKED;
        sl_mailbox_post(d->role.inbox, &m->link);
    }
}

sl_status sl_checker_start(sl_decode *d, sl_err *err)
{
    sl_status st = sl_mailbox_create(&d->checker.inbox);
    if (st != SL_OK)
        return sl_fail(err, st, "cannot create a mailbox");
    if (pthread_create(&d->checker.thread, NULL, checker_main, d) != 0)
        return sl_fail(err, SL_ERR_IO, "cannot start the checker thread");
    d->checker.runs = true;
    return SL_OK;
}

void sl_checker_stop(sl_decode *d)
{
    if (d->checker.runs) {
        d->checker.stop.kind = DM_CHECKER_STOP;
        sl_mailbox_post(d->checker.inbox, &d->checker.stop.link);
        pthread_join(d->checker.thread, NULL);
        d->checker.runs = false;
    }
    sl_mailbox_destroy(d->checker.inbox);
    d->checker.inbox = NULL;
}

bool sl_checker_post(sl_decode *d, sl_ticket *t, sl_wmsg *m, const int32_t *pages, int32_t n,
                     int32_t last_tokens)
{
    sl_check *c = calloc(1, sizeof *c);
    if (!c)
        return false;
    *c = (sl_check){.mail.kind = DM_CHECK,
                    .ticket = t,
                    .n_pages = n,
                    .last_tokens = last_tokens,
                    .n_crc = (size_t)n * (size_t)d->geo->n_layers};
    c->pages = malloc((size_t)n * sizeof *pages + 1);
    c->crc = m->msg.type == SL_MSG_COMMIT ? NULL : malloc(c->n_crc * sizeof *c->crc + 1);
    if (!c->pages || (!c->crc && m->msg.type != SL_MSG_COMMIT)) {
        sl_check_free(c);
        return false;
    }
    memcpy(c->pages, pages, (size_t)n * sizeof *pages);
    c->m = m;
    t->checks++;
    sl_mailbox_post(d->checker.inbox, &c->mail.link);
    return true;
}
