/*
 * What a rank of a group reads of a checkpoint, and by what ranks notice that their checkpoints differ. The pages of a
 * mapped file that only hold other ranks' experts are made unreadable; a rank computes its print and loads its weights
 * without touching one, and a process that computes the fingerprint of the whole checkpoint ends by it.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint_tools.h"
#include "kernels/backend_impl.h"
#include "model/model_impl.h"
#include "tests/unit/run_suite.h"

static const sl_model_opts plain = {.index_format = SL_INDEX_PLAIN,
                                    .row_format = SL_ROW_MLA_F32,
                                    .act = SL_F32,
                                    .max_tokens = 64,
                                    .max_logit_rows = 64,
                                    .max_context = 256};

/* Three ways to store experts: one tensor each, with scales, fused. */
static const struct {
    const char *from;
    bool fuse;
    int layer; /* one with experts */
    int experts;
} stored[] = {
    {"tests/golden/model/ds-yarn", false, 3, 8},
    {"tests/golden/model/ds-fp8", false, 1, 4},
    {"tests/golden/model/glm-share", true, 4, 8},
};

static ct_list *list;
static int experts;
static char dir[256];

static void write_list(void)
{
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
}

static void begin(int i)
{
    char path[300];
    list = calloc(1, sizeof *list);
    experts = stored[i].experts;
    ct_mkdir(dir);
    ct_copy(stored[i].from, dir, "config.json");
    snprintf(path, sizeof path, "%s/model.safetensors", stored[i].from);
    ct_read(list, path);
    for (int layer = 2; layer < 6 && stored[i].fuse; layer++)
        ct_fuse(list, layer, experts);
    write_list();
}

static void end(void)
{
    ct_rmdir(dir);
    ct_free(list);
    free(list);
}

static void first_of(int ranks, int32_t *first)
{
    for (int r = 0; r <= ranks; r++) /* restates sl_ep_split() */
        first[r] = experts * r / ranks;
}

/* ---- what is touched ---- */

typedef struct opened {
    sl_model_config c;
    sl_model_opts o;
    sl_checkpoint *ck;
    size_t closed; /* bytes that cannot be read */
} opened;

/* Which bytes of a tensor the experts [first, end) and everything that is no expert have. */
static void bytes_of(const sl_ck_tensor *e, int32_t first, int32_t end, size_t *from, size_t *to)
{
    const char *at = strstr(e->t->name, ".experts.");
    size_t one = e->t->bytes / experts;
    *from = 0, *to = e->t->bytes;
    if (!at)
        return;
    int expert = 0;
    if (sscanf(at, ".experts.%d.", &expert) != 1)
        *from = one * (size_t)first, *to = one * (size_t)end;
    else if (expert < first || expert >= end)
        *to = 0;
}

/* Makes every page unreadable that holds no byte of the header, of this rank's experts, or of what is no expert. */
static void close_pages(opened *f, int32_t first, int32_t end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), header, total = 0, n = sl_checkpoint_count(f->ck);
    const uint8_t *base = (const uint8_t *)sl_st_header(sl_checkpoint_at(f->ck, 0)->file, &header) - 8;
    for (size_t i = 0; i < n; i++)
        total += sl_checkpoint_at(f->ck, i)->t->bytes;
    size_t pages = (8 + header + total + page - 1) / page;
    bool *needed = calloc(pages, sizeof *needed);
    memset(needed, true, (8 + header + page - 1) / page);
    for (size_t i = 0; i < n; i++) {
        const sl_ck_tensor *e = sl_checkpoint_at(f->ck, i);
        size_t from, to, at = (size_t)((const uint8_t *)e->t->data - base);
        bytes_of(e, first, end, &from, &to);
        for (size_t p = (at + from) / page; from < to && p <= (at + to - 1) / page; p++)
            needed[p] = true;
    }
    for (size_t p = 0; p < pages; p++) {
        if (needed[p])
            continue;
        ck_assert_int_eq(mprotect((void *)(uintptr_t)(base + p * page), page, PROT_NONE), 0);
        f->closed += page;
    }
    free(needed);
}

static void open_rank(opened *f, int32_t rank, int32_t ranks)
{
    sl_err err = {0};
    int32_t first[SL_COMM_RANKS_MAX + 1];
    *f = (opened){.o = plain};
    f->o.rank = rank, f->o.ranks = ranks;
    ck_assert_msg(sl_model_config_load(dir, &f->c, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_checkpoint_open(dir, &f->ck, &err) == SL_OK, "%s", err.text);
    first_of(ranks, first);
    close_pages(f, first[rank], first[rank + 1]);
}

/* Whether a process that computes the fingerprint of all experts comes to its end. */
static bool reads_all(opened *f)
{
    int status = 0;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (!pid) {
        close(2); /* where a sanitizer would report the fault that this test wants */
        sl_key k = sl_fingerprint(f->ck, &f->c, &f->o);
        _exit((k.lo | k.hi) == 0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void loads_own(opened *f, sl_backend *be)
{
    sl_err err = {0};
    sl_weights w;
    const sl_family *family = sl_family_find(f->c.family);
    ck_assert_msg(sl_weights_load(be, f->ck, family, &f->c, &f->o, &w, &err) == SL_OK, "%s", err.text);
    sl_weights_free(&w);
}

START_TEST(a_rank_touches_its_own_tensors_only)
{
    sl_err err = {0};
    sl_backend *be;
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &be, &err), SL_OK);
    be->caps &= ~(unsigned)SL_BE_UNIFIED; /* everything that is placed is read, as for a GPU */
    begin(_i);
    for (int32_t ranks = 2; ranks <= 3; ranks++)
        for (int32_t rank = 0; rank < ranks; rank++) {
            opened f;
            int32_t first[SL_COMM_RANKS_MAX + 1];
            sl_key print, whole;
            open_rank(&f, rank, ranks);
            first_of(ranks, first);
            ck_assert_msg(f.closed > 65536, "only %zu bytes of other ranks", f.closed);
            loads_own(&f, be);
            sl_fingerprints(f.ck, &f.c, &f.o, &(sl_share_of_experts){first[rank], first[rank + 1]}, 1,
                            &print);
            ck_assert(print.lo | print.hi);
            ck_assert(!reads_all(&f));
            sl_checkpoint_close(f.ck);
            ck_assert_int_eq(sl_model_identify(dir, &plain, &whole, &err), SL_OK);
            ck_assert(!sl_key_eq(print, whole));
        }
    end();
    sl_backend_destroy(be);
}
END_TEST

/* ---- what is noticed ---- */

typedef struct prints {
    sl_key whole, of[8];
} prints;

/* As rank 0 computes them, and every rank its own. */
static prints take_prints(int32_t ranks)
{
    prints p;
    sl_err err = {0};
    sl_key k;
    sl_model_opts o = plain;
    o.ranks = ranks;
    ck_assert_msg(sl_model_identify_ranks(dir, &o, &p.whole, p.of, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_model_identify(dir, &plain, &k, &err), SL_OK);
    ck_assert(sl_key_eq(k, p.whole));
    for (o.rank = 0; o.rank < ranks; o.rank++) {
        ck_assert_msg(sl_model_identify_rank(dir, &o, &k, &err) == SL_OK, "%s", err.text);
        ck_assert_msg(sl_key_eq(k, p.of[o.rank]), "the print of rank %d of %d", o.rank, ranks);
        ck_assert(ranks > 1 ? !sl_key_eq(k, p.whole) : sl_key_eq(k, p.whole));
    }
    return p;
}

/* Changes one bit of a tensor that is small enough to be hashed in whole; `share`: within this part of `experts` equal parts. */
static void flip(const char *name, int share)
{
    ct_tensor *t = ct_find(list, name);
    t->data[t->bytes / experts * (size_t)share + 3] ^= 1;
    write_list();
}

/* The bit of an expert changes the fingerprint and the print of its rank; that of another tensor changes all prints. */
START_TEST(a_changed_bit_is_noticed)
{
    const int32_t groups[] = {1, 2, 3, stored[_i].experts};
    char name[128];
    begin(_i);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", stored[_i].layer);
    for (size_t g = 0; g < SL_COUNT(groups); g++) {
        int32_t ranks = groups[g], first[SL_COMM_RANKS_MAX + 1];
        prints was = take_prints(ranks);
        first_of(ranks, first);
        for (int e = 0; e < experts; e++) {
            if (!stored[_i].fuse)
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight", stored[_i].layer,
                         e);
            flip(name, stored[_i].fuse ? e : 0);
            prints is = take_prints(ranks);
            ck_assert(!sl_key_eq(was.whole, is.whole));
            for (int32_t r = 0; r < ranks; r++)
                ck_assert_msg(sl_key_eq(was.of[r], is.of[r]) == (e < first[r] || e >= first[r + 1]),
                              "expert %d, rank %d of %d", e, r, ranks);
            was = is;
        }
        flip("model.norm.weight", 0);
        prints is = take_prints(ranks);
        for (int32_t r = 0; r < ranks; r++)
            ck_assert_msg(!sl_key_eq(was.of[r], is.of[r]), "the norm, rank %d of %d", r, ranks);
    }
    end();
}
END_TEST

START_TEST(impossible_ranks_are_refused)
{
    static const struct {
        int32_t rank, ranks;
        const char *says;
    } wrong[] = {{0, 9, "9 ranks share 8 routed experts"}, {2, 2, "rank 2 of 2"}, {-1, 2, "rank -1 of 2"}};
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        sl_err err = {0};
        sl_key k[SL_COMM_RANKS_MAX], whole;
        sl_model_opts o = plain;
        o.rank = wrong[i].rank, o.ranks = wrong[i].ranks;
        ck_assert_int_eq(sl_model_identify_rank(stored[0].from, &o, k, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, wrong[i].says), "%s", err.text);
        ck_assert_int_eq(sl_model_identify_ranks(stored[0].from, &o, &whole, k, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, wrong[i].says), "%s", err.text);
    }
}
END_TEST

/* A rank that was told the fingerprint has it after the load, as rank 0 has computed it. */
START_TEST(a_fingerprint_that_is_known)
{
    sl_err err = {0};
    sl_backend *be;
    sl_model *m;
    sl_model_opts o = plain;
    o.fingerprint = (sl_key){5, 6};
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &be, &err), SL_OK);
    ck_assert_msg(sl_model_load(be, stored[0].from, &o, &m, &err) == SL_OK, "%s", err.text);
    ck_assert(sl_key_eq(sl_model_fingerprint(m), o.fingerprint));
    sl_model_destroy(m);
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fingerprint");
    TCase *t = tcase_create("fingerprint");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_rank_touches_its_own_tensors_only, 0, SL_COUNT(stored));
    tcase_add_loop_test(t, a_changed_bit_is_noticed, 0, SL_COUNT(stored));
    tcase_add_test(t, impossible_ranks_are_refused);
    tcase_add_test(t, a_fingerprint_that_is_known);
    suite_add_tcase(s, t);
    return run_suite(s);
}
