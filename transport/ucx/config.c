/*
 * UCX transport, settings: turns sl_tp_options into UCX's configuration.
 *
 * Settings reach UCX through ucp_config_modify, never by setenv. Settings that the caller leaves open are
 * read from UCX_* in the environment, as in any UCX program.
 */
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/nic.h"
#include "transport/ucx/ucx_impl.h"

static sl_status set(ucp_config_t *config, const char *name, const char *value, sl_err *err)
{
    ucs_status_t st = value ? ucp_config_modify(config, name, value) : UCS_OK;
    if (st != UCS_OK)
        return sl_fail(err, SL_ERR_INVALID, "ucx setting %s=%s: %s", name, value, ucs_status_string(st));
    return SL_OK;
}

/*
 * A setting of UCX or, by the same name without its prefix, of its TCP transport. Until 1.20 UCX passes names
 * that it does not know to its transports, which accept them without the prefix; since 1.21 only names that
 * exist are accepted.
 */
static sl_status set_any(ucp_config_t *config, const char *name, const char *value, sl_err *err)
{
    char full[64];
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    int n = snprintf(full, sizeof full, "TCP_%s", name);
    sl_status st = set(config, name, value, err);
    if (st != SL_OK && (major > 1 || minor >= 21) && n > 0 && (size_t)n < sizeof full &&
        ucp_config_modify(config, full, value) == UCS_OK)
        st = SL_OK;
    return st;
}

/*
 * "NAME=VALUE;NAME=VALUE"; of two values for one name the last one counts. The settings of a transport are
 * written without its prefix (TX_SEG_SIZE, not TCP_TX_SEG_SIZE).
 */
static sl_status set_extra(ucp_config_t *config, const char *extra, sl_err *err)
{
    char *copy = strdup(extra ? extra : ""), *save = NULL;
    sl_status st = copy ? SL_OK : SL_ERR_NO_MEMORY;
    for (char *item = copy ? strtok_r(copy, ";", &save) : NULL; item && st == SL_OK;
         item = strtok_r(NULL, ";", &save)) {
        char *eq = strchr(item, '=');
        if (!eq) {
            st = sl_fail(err, SL_ERR_INVALID, "ucx setting \"%s\": expected NAME=VALUE", item);
            break;
        }
        *eq = 0;
        st = set_any(config, strncmp(item, "UCX_", 4) == 0 ? item + 4 : item, eq + 1, err);
    }
    free(copy);
    return st;
}

void ux_append(char *text, size_t cap, const char *item)
{
    size_t n = strlen(text);
    snprintf(text + n, cap - n, "%s%s", n ? "," : "", item);
}

/*
 * Devices to use when the caller named none: the RDMA ports nearest to the node, and every ordinary
 * interface, because connections are set up over TCP. Empty when there is nothing to choose.
 */
static void default_devices(int node, char *text, size_t cap)
{
    sl_nic nics[SL_NIC_MAX];
    size_t n = 0;
    struct ifaddrs *list = NULL;
    *text = 0;
    if (node < 0 || getenv("UCX_NET_DEVICES") || sl_nic_list(nics, SL_NIC_MAX, &n, NULL) != SL_OK || n < 2)
        return;
    if (sl_nic_nearest(nics, n, node, text, cap) != SL_OK || !*text || getifaddrs(&list) != 0) {
        *text = 0;
        return;
    }
    for (const struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP))
            ux_append(text, cap, i->ifa_name);
    freeifaddrs(list);
}

/* Settings of TCP are only made if TCP may be used, because UCX warns about settings of unused transports. */
static bool may_use_tcp(const char *tls)
{
    const char *list = tls ? tls : getenv("UCX_TLS");
    return !list || strstr(list, "tcp") || strstr(list, "all") || *list == '^';
}

/*
 * Settings of UCX's TCP transport: the keepalive probes of the kernel, which notice that a host is lost; segments of
 * 64 KiB, because puts over TCP are copied through them (stream.c), which gives about 1.4 times the bandwidth of the
 * default of 8 KiB; and reuse of an address whose old connections have not expired, because a restarted router must be
 * able to use its port immediately.
 */
static sl_status set_tcp(ucp_config_t *config, const char *keepalive, sl_err *err)
{
    const char *const settings[][2] = {{"KEEPIDLE", keepalive},
                                       {"KEEPINTVL", keepalive},
                                       {"KEEPCNT", "3"},
                                       {"TX_SEG_SIZE", "64k"},
                                       {"CM_REUSEADDR", "y"}};
    for (size_t i = 0; i < SL_COUNT(settings); i++)
        SL_TRY(set_any(config, settings[i][0], settings[i][1], err));
    return SL_OK;
}

static sl_status apply(ucp_config_t *config, const sl_tp_options *o, sl_err *err)
{
    char keepalive[32], devices[512];
    snprintf(keepalive, sizeof keepalive, "%ums", o->keepalive_ms);
    default_devices(o->numa_node, devices, sizeof devices);
    SL_TRY(set(config, "TLS", o->tls, err));
    SL_TRY(set(config, "NET_DEVICES", o->net_devices ? o->net_devices : (*devices ? devices : NULL), err));
    SL_TRY(set(config, "SOCKADDR_TLS_PRIORITY", o->sockaddr_priority, err));
    SL_TRY(set(config, "KEEPALIVE_INTERVAL", keepalive, err));
    if (may_use_tcp(o->tls))
        SL_TRY(set_tcp(config, keepalive, err));
    return set_extra(config, o->extra, err);
}

sl_status ux_config_read(const sl_tp_options *o, ucp_config_t **out, sl_err *err)
{
    ucp_config_t *config;
    ucs_status_t ucs = ucp_config_read(NULL, NULL, &config);
    if (ucs != UCS_OK)
        return sl_fail(err, SL_ERR_INVALID, "ucx configuration: %s", ucs_status_string(ucs));
    sl_status st = apply(config, o, err);
    if (st != SL_OK) {
        ucp_config_release(config);
        return st;
    }
    *out = config;
    return SL_OK;
}
