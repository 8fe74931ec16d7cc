/*
 * The NIXL tier as its owner sees it: pages in files or objects that NIXL reads and writes, shared with other Sluice clusters.
 * NIXL is opened at run time (nixl_api.h). The I/O is done by a thread of its own (nixl_io.c).
 *
 * What the contract of kvstore/tier.h means here:
 *   - Back ends of files (POSIX, GDS): one file for each page in a directory that other processes may use too, with a
 *     mandatory size limit (nixl_files.c). A lease is a time of change in the future, so every process respects it; one
 *     that lists the directory while a page is asked for can still evict it, which is a miss of the get.
 *   - Back ends of objects (OBJ for S3): one object for each page. NIXL cannot delete objects and has no leases, so whoever
 *     owns the bucket bounds it (a rule that removes old objects), and capacity_bytes must be 0.
 *   - Records carry length and checksum (page_record.h), and are verified before a byte reaches a reader.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/nixl_impl.h"

#define STAGING_BYTES ((uint64_t)64 << 20)
enum { FAILURES_DEGRADED = 3, FAILURES_FAILED = 16 };

static uint32_t slow_ms(const sl_nixl_tier *t)
{
    return t->o.slow_ms ? t->o.slow_ms : 5000;
}

static void n_health(sl_tier *base, sl_tier_health *out)
{
    sl_nixl_tier *t = (sl_nixl_tier *)base;
    uint64_t now = sl_now_ns(), slow = slow_ms(t) * 1000000ull;
    *out = (sl_tier_health){.state = SL_TIER_HEALTHY};
    pthread_mutex_lock(&t->th.lock);
    if (t->failures >= FAILURES_DEGRADED) {
        out->state = t->failures >= FAILURES_FAILED ? SL_TIER_FAILED : SL_TIER_DEGRADED;
        snprintf(out->reason, sizeof out->reason, "nixl %s: %s", t->backend_name, t->why);
    } else if (t->oldest_ns && now > t->oldest_ns && now - t->oldest_ns > slow) {
        out->state = SL_TIER_DEGRADED;
        snprintf(out->reason, sizeof out->reason, "nixl %s: a transfer has been in flight for %.1f s",
                 t->backend_name, (double)(now - t->oldest_ns) / 1e9);
    }
    pthread_mutex_unlock(&t->th.lock);
}

static void n_submit(sl_tier *base, sl_tier_req *r)
{
    sl_tier_thread_submit(&((sl_nixl_tier *)base)->th, r);
}

static void n_cancel(sl_tier *base, sl_tier_req *r)
{
    sl_tier_thread_cancel(&((sl_nixl_tier *)base)->th, r);
}

static int n_fd(const sl_tier *base)
{
    return ((const sl_nixl_tier *)base)->th.event;
}

static int n_poll(sl_tier *base)
{
    return sl_tier_thread_poll(&((sl_nixl_tier *)base)->th);
}

/* Room for n more keys; with the lock. */
static bool reserve_releases(sl_nixl_tier *t, int32_t n)
{
    int32_t want = t->n_released + n;
    if (n > SL_NIXL_RELEASES || want > SL_NIXL_RELEASES)
        return false;
    if (want > t->released_cap) {
        sl_key *more = realloc(t->released, (size_t)want * 2 * sizeof *more);
        if (!more)
            return false;
        t->released = more;
        t->released_cap = want * 2;
    }
    return true;
}

/* The thread ends the leases, because this one must not wait for a file system that hangs. Leases for which there is no room in
 * the list end by time. */
static void n_release(sl_tier *base, const sl_key *keys, int32_t n)
{
    sl_nixl_tier *t = (sl_nixl_tier *)base;
    if (t->objects || n < 1)
        return;
    pthread_mutex_lock(&t->th.lock);
    if (reserve_releases(t, n)) {
        memcpy(t->released + t->n_released, keys, (size_t)n * sizeof *keys);
        t->n_released += n;
    }
    pthread_mutex_unlock(&t->th.lock);
    sl_tier_thread_wake(&t->th);
}

static void n_stats(sl_tier *base, sl_tier_stats *out)
{
    sl_nixl_tier *t = (sl_nixl_tier *)base;
    pthread_mutex_lock(&t->th.lock);
    *out = t->st;
    pthread_mutex_unlock(&t->th.lock);
}

static bool n_damage(sl_tier *base, sl_key key)
{
    const sl_nixl_tier *t = (const sl_nixl_tier *)base;
    return !t->objects && sl_nixl_file_damage(&t->files, key, SL_PAGE_RECORD_BYTES + t->o.page_bytes / 2);
}

/* ---- open and close ---- */

static void free_tier(sl_nixl_tier *t)
{
    const sl_nixl_api *a = t->api;
    if (t->staging_regions) {
        a->deregister_mem(t->agent, t->staging_regions, t->options);
        a->destroy_regions(t->staging_regions);
    }
    if (t->options)
        a->destroy_options(t->options);
    if (t->backend)
        a->destroy_backend(t->backend);
    if (t->agent)
        a->destroy_agent(t->agent);
    sl_tier_thread_free(&t->th);
    free(t->released);
    free(t->staging);
    free(t);
}

/*
 * A transfer that does not end, or a call that does not return, would make close wait for ever, and with it the end of the
 * process: NIXL cannot cancel a transfer. Whoever stops a worker wants it to stop. So close waits for slow_ms, and then ends
 * the requests itself. What NIXL may still use (staging buffers, descriptors of files, the agent) is left as it is until the
 * process ends; pages of the host store are not in use, because transfers go through the staging buffers.
 */
static bool stop_thread(sl_nixl_tier *t)
{
    enum { STEP_MS = 10 };
    bool ended = sl_tier_thread_stop_within(&t->th, slow_ms(t)), away = false;
    if (ended)
        return true;
    pthread_mutex_lock(&t->th.lock);
    t->left = true; /* it ends after its next call of back() */
    pthread_mutex_unlock(&t->th.lock);
    while (!ended && !away) {
        ended = sl_tier_thread_stop_within(&t->th, STEP_MS);
        pthread_mutex_lock(&t->th.lock);
        away = t->away;
        pthread_mutex_unlock(&t->th.lock);
    }
    if (!ended)
        pthread_detach(t->th.thread);
    return false;
}

/* Ends what the thread has begun and will not end. */
static void end_requests(sl_nixl_tier *t)
{
    int32_t transfers = 0, questions = t->n_questions - t->n_answered;
    for (int32_t i = 0; i < t->depth; i++) {
        if (!t->ops[i].used)
            continue;
        transfers++;
        sl_tier_thread_end_key(&t->th, t->ops[i].req, t->ops[i].i, SL_ERR_IO);
    }
    for (int32_t i = t->n_answered; i < t->n_questions; i++)
        sl_tier_thread_end_key(&t->th, t->questions[i].req, t->questions[i].i, SL_ERR_IO);
    sl_log(
        SL_LOG_WARN, "tier", "nixl_left",
        "backend=%s transfers=%d questions=%d waited_ms=%u effect=\"they run on, and their buffers stay in memory "
        "until the process ends\"",
        t->backend_name, transfers, questions, slow_ms(t));
}

/* Tiers whose thread or transfers run on. They stay reachable, because they are not lost but kept. */
static void keep_for_ever(sl_nixl_tier *t)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static sl_nixl_tier *left;
    pthread_mutex_lock(&lock);
    t->next_left = left;
    left = t;
    pthread_mutex_unlock(&lock);
}

static void n_close(sl_tier *base)
{
    sl_nixl_tier *t = (sl_nixl_tier *)base;
    bool ended = stop_thread(t);
    if (!ended)
        end_requests(t);
    sl_tier_thread_drain(&t->th);
    if (ended)
        free_tier(t);
    else
        keep_for_ever(t);
}

static const sl_option rows[] = {
    SL_OPTION(sl_nixl_options, backend, SL_OPTION_TEXT, 0, "", 0, 0,
              "Plug-in of NIXL by which decode workers keep pages in a store that other clusters can use too "
              "(docs/caching.md): POSIX, GDS or GDS_MT for files, OBJ for S3. Empty: NIXL is not used."),
    SL_OPTION(
        sl_nixl_options, library, SL_OPTION_TEXT, 0, "libnixl_capi.so", 0, 0,
        "NIXL's C library, a path or a name for the system's search; it is in the PyPI packages nixl-cu12 and "
        "nixl-cu13."),
    SL_OPTION(
        sl_nixl_options, parameters, SL_OPTION_TEXTS, 0, "", 0, 0,
        "Parameters of the plug-in, each KEY=VALUE (docs/caching.md names those that matter). They are shown with the "
        "configuration: secret_key and session_token are refused, and come from the environment or a file of AWS's "
        "tools."),
    SL_OPTION(
        sl_nixl_options, path, SL_OPTION_TEXT, 0, "", 0, 0,
        "Plug-ins for files: directory of the pages, on a file system that all clusters of the store mount."),
    SL_TIER_BYTES(
        sl_nixl_options,
        "Plug-ins for files: size limit of the directory, whoever wrote the files; mandatory. 0 for objects, which "
        "NIXL cannot delete: a rule of the bucket has to limit it."),
};

static sl_status finish(void *values, sl_err *err)
{
    const sl_nixl_options *o = values;
    if (!o->path[0] != !o->common.bytes)
        return sl_fail(
            err, SL_ERR_INVALID,
            "bytes and kvstore.nixl.path: files need both, the directory and its size limit; objects need "
            "neither");
    for (int i = 0; i < o->parameters.n; i++) {
        const char *text = o->parameters.v[i];
        bool key = strncmp(text, "secret_key=", 11) == 0;
        if (key || strncmp(text, "session_token=", 14) == 0)
            return sl_fail(
                err, SL_ERR_INVALID,
                "parameters: %s would be shown with the configuration; give it to the workers in the environment (%s), "
                "or in the file that AWS_SHARED_CREDENTIALS_FILE names",
                key ? "secret_key" : "session_token", key ? "AWS_SECRET_ACCESS_KEY" : "AWS_SESSION_TOKEN");
    }
    return SL_OK;
}

static const sl_options table = {.section = "kvstore.nixl",
                                 .name = "nixl",
                                 .on = "backend",
                                 .needs_reuse = true,
                                 .rows = rows,
                                 .n = SL_COUNT(rows),
                                 .bytes = sizeof(sl_nixl_options),
                                 .finish = finish};
_Static_assert(sizeof(sl_nixl_options) <= SL_TIER_OPTIONS_BYTES, "see tier.h");

/* "KEY=VALUE" texts as NIXL's parameters. */
static sl_status parameters(const sl_nixl_api *a, const sl_nixl_options *n, nixl_params **out, sl_err *err)
{
    if (a->create_params(out) != NIXL_DONE)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier nixl: out of memory");
    for (int i = 0; i < n->parameters.n; i++) {
        char key[128];
        const char *text = n->parameters.v[i], *eq = strchr(text, '=');
        if (!eq || eq == text || (size_t)(eq - text) >= sizeof key)
            return sl_fail(err, SL_ERR_INVALID, "kvstore.nixl.parameters: \"%.100s\": want KEY=VALUE", text);
        snprintf(key, sizeof key, "%.*s", (int)(eq - text), text);
        if (a->params_add(*out, key, eq + 1) != NIXL_DONE)
            return sl_fail(err, SL_ERR_INVALID, "kvstore.nixl.parameters: \"%.100s\" is refused", text);
    }
    return SL_OK;
}

/* The names of the plug-ins whose files NIXL has found, for a message; whether this one is among them. */
static bool list_plugins(const sl_nixl_tier *t, const char *wanted, char *out, size_t cap)
{
    bool found = false;
    nixl_names *names = NULL;
    size_t n = 0, at = 0;
    const char *name;
    out[0] = '\0';
    if (t->api->plugins(t->agent, &names) != NIXL_DONE || t->api->names_size(names, &n) != NIXL_DONE)
        return false;
    for (size_t i = 0; i < n && at < cap; i++)
        if (t->api->names_get(names, i, &name) == NIXL_DONE) {
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? ", " : "", name);
            found = found || strcmp(name, wanted) == 0;
        }
    t->api->names_free(names);
    return found;
}

static sl_status no_backend(const sl_nixl_tier *t, const char *name, sl_err *err)
{
    char plugins[300];
    if (!list_plugins(t, name, plugins, sizeof plugins))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "kvstore.nixl.backend: NIXL has no plug-in \"%.60s\"; there are: %s", name, plugins);
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "kvstore.nixl.backend: plug-in \"%.60s\" could not be started: it lacks a library (see ldd libplugin_%.60s.so) or a "
        "device, or kvstore.nixl.parameters are wrong or incomplete. NIXL's own messages, on the standard error "
        "output, may say more",
        name, name);
}

static bool has_kind(const sl_nixl_tier *t, int kind)
{
    nixl_mems *mems = NULL;
    nixl_params *params = NULL;
    size_t n = 0;
    int is;
    bool found = false;
    if (t->api->backend_params(t->agent, t->backend, &mems, &params) != NIXL_DONE)
        return false;
    t->api->mems_size(mems, &n);
    for (size_t i = 0; i < n; i++)
        found = found || (t->api->mems_get(mems, i, &is) == NIXL_DONE && is == kind);
    t->api->mems_free(mems);
    t->api->destroy_params(params);
    return found;
}

static sl_status open_backend(sl_nixl_tier *t, const sl_nixl_options *n, sl_err *err)
{
    static atomic_int agents;
    const sl_nixl_api *a = t->api;
    nixl_params *params = NULL;
    snprintf(t->agent_name, sizeof t->agent_name, "sluice-%d-%d", (int)getpid(),
             atomic_fetch_add(&agents, 1));
    snprintf(t->backend_name, sizeof t->backend_name, "%.31s", n->backend);
    if (a->create_agent(t->agent_name, &t->agent) != NIXL_DONE)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "kvstore.nixl.library: NIXL could not create an agent");
    sl_status st = parameters(a, n, &params, err);
    if (st == SL_OK && a->create_backend(t->agent, n->backend, params, &t->backend) != NIXL_DONE) {
        t->backend = NULL;
        st = no_backend(t, n->backend, err);
    }
    if (params)
        a->destroy_params(params);
    SL_TRY(st);
    bool files = has_kind(t, NIXL_FILE);
    t->objects = !files && has_kind(t, NIXL_OBJECT);
    if (!files && !t->objects)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "kvstore.nixl.backend: plug-in \"%.60s\" has neither files nor objects", n->backend);
    if (a->create_options(&t->options) != NIXL_DONE ||
        a->options_add_backend(t->options, t->backend) != NIXL_DONE)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier nixl: out of memory");
    return SL_OK;
}

static sl_status open_place(sl_nixl_tier *t, const sl_tier_opts *o, sl_err *err)
{
    if (!t->objects)
        return sl_nixl_files_open(&t->files, o, o->prefix, err);
    if (o->capacity_bytes)
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.nixl.bytes: %" PRIu64
                       " bytes: NIXL cannot delete objects, so it must be 0, and the "
                       "bucket needs a rule that removes old objects",
                       o->capacity_bytes);
    sl_page_name_stem(o->prefix, o, '/', t->prefix);
    return SL_OK;
}

static sl_status make_staging(sl_nixl_tier *t, const sl_tier_opts *o, sl_err *err)
{
    const sl_nixl_api *a = t->api;
    size_t bytes = (SL_PAGE_RECORD_BYTES + o->page_bytes + SL_NIXL_ALIGN - 1) / SL_NIXL_ALIGN * SL_NIXL_ALIGN;
    uint64_t depth = o->queue_depth > 0 ? (uint64_t)o->queue_depth : STAGING_BYTES / bytes;
    t->depth = depth < 2 ? 2 : depth > SL_NIXL_DEPTH ? SL_NIXL_DEPTH : (int32_t)depth;
    t->staging = aligned_alloc(SL_NIXL_ALIGN, (size_t)t->depth * bytes);
    if (!t->staging)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier nixl: no memory for staging buffers");
    memset(t->staging, 0, (size_t)t->depth * bytes);
    for (int32_t i = 0; i < t->depth; i++)
        t->ops[i].buffer = t->staging + (size_t)i * bytes;
    nixl_regions *regions = NULL;
    if (a->create_regions(NIXL_DRAM, &regions) != NIXL_DONE ||
        a->regions_add(regions, (uintptr_t)t->staging, (size_t)t->depth * bytes, 0, "", 0) != NIXL_DONE ||
        a->register_mem(t->agent, regions, t->options) != NIXL_DONE) {
        if (regions)
            a->destroy_regions(regions);
        return sl_fail(err, SL_ERR_UNSUPPORTED, "tier nixl: NIXL could not register the staging buffers");
    }
    t->staging_regions = regions;
    return SL_OK;
}

static sl_status probe(sl_nixl_tier *t, bool required, sl_err *err)
{
    sl_err why = {0};
    sl_status st = sl_nixl_probe(t, &why);
    if (st == SL_OK || required || t->in_flight)
        return st == SL_OK ? SL_OK : sl_fail(err, st, "kvstore.nixl.backend: %s", why.text);
    sl_log(SL_LOG_WARN, "tier", "nixl_unreachable", "reason=\"%s\" effect=\"started without it\"", why.text);
    return SL_OK;
}

static sl_status prepare(sl_nixl_tier *t, const sl_tier_opts *o, sl_err *err)
{
    const sl_nixl_options *n = o->options;
    if (!n || !n->backend[0] || !o->prefix || !o->prefix[0])
        return sl_fail(err, SL_ERR_INVALID, "kvstore.%s: is empty",
                       n && n->backend[0] ? "prefix" : "nixl.backend");
    if (!o->page_bytes || o->page_bytes > (size_t)256 << 20)
        return sl_fail(err, SL_ERR_INVALID, "tier nixl: pages of %zu bytes are too large", o->page_bytes);
    t->o = *o;
    t->o.options = NULL, t->o.prefix = t->o.instance = NULL;
    t->o.directory = NULL;
    if (sl_nixl_open(n->library, &t->api, err) != SL_OK)
        return sl_fail_in(err, SL_ERR_UNSUPPORTED, "kvstore.nixl.library");
    SL_TRY(open_backend(t, n, err));
    SL_TRY(open_place(t, o, err));
    SL_TRY(make_staging(t, o, err));
    return t->objects ? probe(t, o->required, err) : SL_OK;
}

static sl_status n_open(const sl_tier_opts *o, sl_tier **out, sl_err *err)
{
    sl_nixl_tier *t = calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier nixl: out of memory");
    t->base.ops = &sl_tier_nixl_ops;
    sl_status st = sl_tier_thread_init(&t->th, o);
    if (st != SL_OK)
        sl_fail(err, st, "tier nixl: out of descriptors");
    if (st == SL_OK)
        st = prepare(t, o, err);
    if (st == SL_OK && (st = sl_tier_thread_start(&t->th, sl_nixl_main, t)) != SL_OK)
        sl_fail(err, st, "tier nixl: no thread");
    if (st != SL_OK && t->in_flight)
        keep_for_ever(t);
    else if (st != SL_OK)
        free_tier(t);
    if (st != SL_OK)
        return st;
    sl_log(SL_LOG_INFO, "tier", "nixl_opened", "backend=%s kind=%s used_bytes=%lu", t->backend_name,
           t->objects ? "objects" : "files", t->files.used);
    *out = &t->base;
    return SL_OK;
}

const sl_tier_ops sl_tier_nixl_ops = {.name = "nixl",
                                      .description = "pages in files or objects, by a back end of NIXL",
                                      .options = &table,
                                      .shared = true,
                                      .open = n_open,
                                      .close = n_close,
                                      .fd = n_fd,
                                      .submit = n_submit,
                                      .cancel = n_cancel,
                                      .release = n_release,
                                      .poll = n_poll,
                                      .health = n_health,
                                      .stats = n_stats,
                                      .damage = n_damage};
