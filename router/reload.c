/* What a router reads again on SIGHUP: its certificates and the keys of its tenants. */
#include "router/core/core_impl.h"

static bool has_tls(const sl_router *r)
{
    return r->o.front.tls_cert && *r->o.front.tls_cert;
}

static void use_tls(sl_router *r, sl_tls *t)
{
    sl_tls_unref(r->tls);
    r->tls = t;
    sl_log(SL_LOG_INFO, "router", "tls_loaded", "cert=%s expires=%s client_ca=%s", r->o.front.tls_cert,
           sl_tls_expires(t), r->o.front.tls_client_ca ? r->o.front.tls_client_ca : "");
}

/* At start a date that does not fit the clock is a warning only: there is no other certificate to keep, the clock may be
 * what is wrong, and clients judge the date themselves. */
sl_status sl_router_load_tls(sl_router *r, sl_err *err)
{
    sl_tls *t;
    sl_err date = {""};
    if (!has_tls(r))
        return SL_OK;
    SL_TRY(sl_tls_load(r->o.front.tls_cert, r->o.front.tls_key, r->o.front.tls_client_ca, &t, err));
    if (sl_tls_check_dates(t, r->o.front.tls_cert, &date))
        sl_log(SL_LOG_WARN, "router", "tls_not_valid_now", "reason=\"%s\"", date.text);
    use_tls(r, t);
    return SL_OK;
}

/* Files that are wrong, or whose dates do not fit the clock, leave the certificates as they are; connections keep those
 * they began with. */
static void reload_tls(sl_router *r)
{
    sl_tls *t = NULL;
    sl_err err = {""};
    if (!has_tls(r))
        return;
    if (sl_tls_load(r->o.front.tls_cert, r->o.front.tls_key, r->o.front.tls_client_ca, &t, &err) ||
        sl_tls_check_dates(t, r->o.front.tls_cert, &err)) {
        sl_log(SL_LOG_ERROR, "router", "tls_kept", "expires=%s reason=\"%s\"", sl_tls_expires(r->tls),
               err.text);
        sl_tls_unref(t);
        return;
    }
    use_tls(r, t);
}

/* A file that is wrong leaves the tenants as they are. */
static void reload_keys(sl_router *r)
{
    sl_tenants t;
    sl_err err = {""};
    if (!r->o.front.keys_file || !*r->o.front.keys_file)
        return;
    if (sl_tenants_load(r->o.front.keys_file, &t, &err)) {
        sl_log(SL_LOG_ERROR, "router", "keys_kept", "tenants=%zu reason=\"%s\"", r->tenants.n, err.text);
        return;
    }
    sl_tenants_free(&r->tenants);
    r->tenants = t;
    sl_log(SL_LOG_INFO, "router", "keys_loaded", "tenants=%zu", t.n);
}

void sl_router_reload(sl_router *r)
{
    reload_tls(r);
    reload_keys(r);
}
