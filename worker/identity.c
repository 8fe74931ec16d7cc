/* See identity.h. */
#include "worker/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/choose.h"
#include "engine/engine.h"
#include "worker/select.h"
#include "worker/wanted.h"

enum { HOST_CHARS = 40 };

/* The inode of the initial pid namespace (PROC_PID_INIT_INO in the kernel's sources). */
static const ino_t FIRST_PID_NAMESPACE = 0xEFFFFFFC;

void sl_worker_default_name(sl_role role, char out[SL_WORKER_NAME_MAX])
{
    char name[256] = "";
    const char *host = name;
    struct stat ns;
    gethostname(name, sizeof name - 1);
    name[strcspn(name, ".")] = '\0';
    size_t n = strlen(name);
    if (n > HOST_CHARS)
        host += n - HOST_CHARS;
    if (stat("/proc/self/ns/pid", &ns) == 0 && ns.st_ino != FIRST_PID_NAMESPACE)
        snprintf(out, SL_WORKER_NAME_MAX, "%s@%.40s/%d-%x", sl_role_name(role), host, (int)getpid(),
                 (unsigned)ns.st_ino & 0xffffff);
    else
        snprintf(out, SL_WORKER_NAME_MAX, "%s@%.40s/%d", sl_role_name(role), host, (int)getpid());
}

int sl_worker_group_ranks(const sl_cfg_cluster *c, sl_role role)
{
    int ranks = c->group[role].ranks;
    return ranks ? ranks : 1;
}

const char *sl_worker_group_address(const sl_cfg_cluster *c, sl_role role)
{
    return c->group[role].address;
}

/* Sets the fingerprints. The one of the geometry is that of the checkpoint, of a rank of a group 0. */
static sl_status read_fingerprints(const char *path, const sl_model_opts *mo, sl_worker_identity *out,
                                   sl_err *err)
{
    if (mo->ranks < 2)
        return sl_model_identify(path, mo, &out->id.fingerprint, err);
    if (mo->rank > 0)
        return sl_model_identify_rank(path, mo, &out->id.fingerprint, err);
    SL_TRY(sl_model_identify_ranks(path, mo, &out->whole, out->prints, err));
    out->id.fingerprint = out->prints[0];
    return SL_OK;
}

static sl_status read_identity(const sl_config *cfg, sl_model_opts *mo, sl_model_config *mc,
                               sl_worker_identity *out, sl_err *err)
{
    const char *path = cfg->model.path;
    sl_dtype stored;
    sl_geometry g;
    SL_TRY(sl_setup_config(cfg, mc, err));
    mo->draft = mc->n_draft > 0;
    SL_TRY(sl_setup_stored(cfg, mc, &stored, err));
    mo->dummy = cfg->model.load_format == SL_CFG_LOAD_DUMMY;
    if (mo->dummy)
        mc->dir[0] = 0; /* its weights are not read */
    mo->act = sl_model_auto_act(stored);
    SL_TRY(sl_setup_formats(cfg, mc, stored, &mo->index_format, &mo->row_format, err));
    sl_setup_selection selected;
    SL_TRY(sl_setup_select(cfg, mc, &selected, err));
    SL_TRY(read_fingerprints(path, mo, out, err));
    sl_cache_dims cache = sl_engine_cache_dims(mc, mo->row_format, mo->index_format);
    cache.select = selected.select;
    sl_key fingerprint = mo->ranks < 2 ? out->id.fingerprint : (sl_key){0, 0};
    SL_TRY(sl_engine_geometry(mc, &cache, selected.algorithm, SL_LAYOUT_PAGE_FIRST, fingerprint, &g, err));
    sl_geometry_write(&g, &out->bytes);
    if (out->bytes.bad)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    out->id.geometry = (sl_blob){out->bytes.data, out->bytes.len};
    out->row_format = sl_row_format_name(mo->row_format);
    out->indexer = sl_index_format_name(mo->index_format);
    return SL_OK;
}

sl_status sl_worker_identity_of_rank(const sl_config *cfg, int32_t rank, int32_t ranks,
                                     sl_worker_identity *out, sl_err *err)
{
    sl_model_opts mo = {.max_tokens = 1, .rank = rank, .ranks = ranks};
    memset(out, 0, sizeof *out);
    sl_model_config *mc = calloc(1, sizeof *mc);
    if (!mc)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_wr_init(&out->bytes);
    sl_status st = read_identity(cfg, &mo, mc, out, err);
    free(mc);
    if (st != SL_OK)
        sl_worker_identity_free(out);
    return st;
}

sl_status sl_worker_identity_read(const sl_config *cfg, sl_worker_identity *out, sl_err *err)
{
    return sl_worker_identity_of_rank(cfg, 0, 1, out, err);
}

void sl_worker_identity_free(sl_worker_identity *id)
{
    sl_wr_free(&id->bytes);
    memset(id, 0, sizeof *id);
}
