/*
 * GetTokenizer: the tokenizer's files as an archive, in chunks.
 *
 * The archive is made once, on the pool, when the first call asks for it, and all calls send from it. A call holds only
 * what waits to be sent, which is in the budget of bytes.
 */
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "common.pb-c.h"
#include "router/grpc/rpc.h"

#define C(name) Smg__Grpc__Common__##name

enum {
    ZIP_CHUNK = 64 << 10,
    /* Of a call: what waits to be sent, at most RPC_ROOM_BYTES and a chunk, in a buffer that grew by doubling, and the
     * message that was packed last. */
    CALL_BYTES = 4 * (RPC_ROOM_BYTES + ZIP_CHUNK)
};

/* One for each front; lives until the front is destroyed, or until it is made if that is later. */
struct rpc_archive {
    sl_front_job job; /* first: an sl_front_job pointer is an archive pointer */
    sl_grpc *g;       /* NULL: the front is gone */
    const char *dir;
    uint8_t *zip; /* NULL: not made yet */
    size_t len;
    bool making;
    char sha[65];
    sl_status st;
    sl_err err;
};

/* `user` of a call. */
typedef struct reader {
    size_t sent;
} reader;

static void hex_sha256(const uint8_t *data, size_t n, char out[65])
{
    unsigned char md[SHA256_DIGEST_LENGTH];
    SHA256(data, n, md);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(out + 2 * i, 3, "%02x", md[i]);
}

static void free_archive(rpc_archive *a)
{
    free(a->zip);
    free(a);
}

void rpc_archive_drop(sl_grpc *g)
{
    rpc_archive *a = g->archive;
    g->archive = NULL;
    if (a && a->making) {
        a->g = NULL;
        sl_guard_stop(&a->job.guard);
    } else if (a) {
        free_archive(a);
    }
}

void sl_job_archive(sl_front_job *j)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "config.json", "generation_config.json"};
    rpc_archive *a = (rpc_archive *)j;
    a->st = rpc_zip(a->dir, files, SL_COUNT(files), &j->guard, &a->zip, &a->len, &a->err);
    if (!a->st)
        hex_sha256(a->zip, a->len, a->sha);
}

/* All calls that wait for the archive go on, or end with its error, after which the next call tries again. */
void sl_job_archived(sl_front_job *j, bool ran)
{
    rpc_archive *a = (rpc_archive *)j;
    sl_grpc *g = a->g;
    a->making = false;
    if (!ran)
        a->st = SL_ERR_PEER;
    for (rpc_call *c = g ? g->calls : NULL; c; c = c->next) {
        if (!c->m || c->m->message != rpc_tokenizer || !c->user || c->finished)
            continue;
        if (a->st)
            rpc_finish(c, rpc_code_of(a->st), a->err.text);
        else
            rpc_tokenizer_more(c);
    }
    if (g && a->st)
        g->archive = NULL;
    if (!g || a->st)
        free_archive(a);
}

static sl_status begin_archive(rpc_call *c)
{
    rpc_archive *a = calloc(1, sizeof *a);
    if (!a)
        return SL_ERR_NO_MEMORY;
    a->g = c->g;
    a->dir = c->g->o->model.path;
    sl_front_job_init(c->r, &a->job, SL_JOB_TOKENIZER_ARCHIVE);
    a->job.guard.hold = NULL; /* no client's bytes */
    a->making = true;
    c->g->archive = a;
    sl_front_job_post(c->g->loop, &a->job);
    return SL_OK;
}

void rpc_tokenizer_more(rpc_call *c)
{
    const rpc_archive *a = c->g->archive;
    reader *d = c->user;
    bool ok = true;
    if (!d || !a || a->making || !a->zip) /* while it is made, its other fields are the pool's */
        return;
    while (ok && d->sent < a->len && h2_stream_waiting(c->s) < RPC_ROOM_BYTES) {
        C(GetTokenizerChunk) k = SMG__GRPC__COMMON__GET_TOKENIZER_CHUNK__INIT;
        k.data.data = a->zip + d->sent;
        k.data.len = a->len - d->sent < ZIP_CHUNK ? a->len - d->sent : ZIP_CHUNK;
        d->sent += k.data.len;
        if (d->sent == a->len)
            k.sha256 = (char *)a->sha;
        ok = rpc_send(c, &k.base);
    }
    if (ok && d->sent == a->len)
        rpc_finish(c, RPC_OK, NULL);
}

void rpc_tokenizer_gone(rpc_call *c)
{
    free(c->user);
    c->user = NULL;
}

void rpc_tokenizer(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!rpc_read_empty(c, &smg__grpc__common__get_tokenizer_request__descriptor, data, n))
        return;
    if (!c->g->o->model.path || !*c->g->o->model.path) {
        rpc_finish(c, RPC_NOT_FOUND, "this server has no tokenizer files");
        return;
    }
    if (!rpc_hold(c, RPC_CALL_BYTES + CALL_BYTES)) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, SL_FRONT_NO_ROOM);
        return;
    }
    c->user = calloc(1, sizeof(reader));
    if (!c->user || (!c->g->archive && begin_archive(c)))
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
    else
        rpc_tokenizer_more(c);
}
