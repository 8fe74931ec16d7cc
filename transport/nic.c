/* Facts about NICs from libibverbs and sysfs; distances from libnuma. See nic.h. */
#include "transport/nic.h"

#include <dirent.h>
#include <infiniband/verbs.h>
#include <numa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NUMA node of an RDMA device from sysfs; -1 when the kernel does not know it. */
static int node_of(const char *device)
{
    char path[160], line[32];
    int node = -1;
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/numa_node", device);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    if (fgets(line, sizeof line, f))
        node = (int)strtol(line, NULL, 10);
    fclose(f);
    return node < 0 ? -1 : node;
}

static void netdev_of(const char *device, char *out, size_t cap)
{
    char path[160];
    *out = 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/net", device);
    DIR *d = opendir(path);
    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(out, cap, "%.31s", e->d_name);
            break;
        }
    closedir(d);
}

/* Rate of a port in 10^9 bits per second; libibverbs gives width and speed as codes. */
static double gbps_of(const struct ibv_port_attr *a)
{
    static const struct {
        int code, lanes;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    static const struct {
        int code;
        double gbps;
    } speeds[] = {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
    double lanes = 0, speed = 0;
    for (size_t i = 0; i < SL_COUNT(widths); i++)
        if (widths[i].code == a->active_width)
            lanes = widths[i].lanes;
    for (size_t i = 0; i < SL_COUNT(speeds); i++)
        if (speeds[i].code == a->active_speed)
            speed = speeds[i].gbps;
    return lanes * speed;
}

static sl_nic_link link_of(const struct ibv_port_attr *a)
{
    return a->link_layer == IBV_LINK_LAYER_INFINIBAND ? SL_NIC_INFINIBAND
           : a->link_layer == IBV_LINK_LAYER_ETHERNET ? SL_NIC_ETHERNET
                                                      : SL_NIC_OTHER;
}

static size_t list_ports(struct ibv_device *dev, sl_nic *out, size_t cap)
{
    struct ibv_device_attr attr;
    struct ibv_context *ctx = ibv_open_device(dev);
    size_t n = 0;
    if (!ctx)
        return 0;
    if (ibv_query_device(ctx, &attr) != 0)
        attr.phys_port_cnt = 0;
    for (int port = 1; port <= attr.phys_port_cnt && n < cap; port++) {
        struct ibv_port_attr pa;
        if (ibv_query_port(ctx, (uint8_t)port, &pa) != 0)
            continue;
        sl_nic *nic = &out[n++];
        *nic = (sl_nic){.port = port, .active = pa.state == IBV_PORT_ACTIVE, .link = link_of(&pa)};
        snprintf(nic->device, sizeof nic->device, "%s", ibv_get_device_name(dev));
        netdev_of(nic->device, nic->netdev, sizeof nic->netdev);
        nic->numa_node = node_of(nic->device);
        nic->gbps = nic->active ? gbps_of(&pa) : 0;
    }
    ibv_close_device(ctx);
    return n;
}

sl_status sl_nic_list(sl_nic *out, size_t cap, size_t *n, sl_err *err)
{
    int count = 0;
    size_t found = 0;
    (void)err;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (list) {
        for (int i = 0; i < count && found < cap; i++)
            found += list_ports(list[i], out + found, cap - found);
        ibv_free_device_list(list);
    }
    *n = found; /* without a list the host has no RDMA subsystem, which is not an error */
    return SL_OK;
}

/* NUMA distance as the kernel gives it (10: local); large when unknown. */
static int distance(int from, int to)
{
    if (from < 0 || to < 0)
        return 1 << 20;
    if (from == to)
        return 10;
    int d = numa_available() < 0 ? 0 : numa_distance(from, to);
    return d > 0 ? d : 1 << 19;
}

sl_status sl_nic_nearest(const sl_nic *nics, size_t n, int node, char *text, size_t cap)
{
    int best = INT32_MAX;
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; i < n; i++)
        if (nics[i].active && distance(node, nics[i].numa_node) < best)
            best = distance(node, nics[i].numa_node);
    for (size_t i = 0; i < n; i++) {
        if (!nics[i].active || (node >= 0 && distance(node, nics[i].numa_node) != best))
            continue;
        int w = snprintf(text + used, cap - used, "%s%s:%d", used ? "," : "", nics[i].device, nics[i].port);
        if (w < 0 || (size_t)w >= cap - used)
            return SL_ERR_TOO_LARGE;
        used += (size_t)w;
    }
    return SL_OK;
}

void sl_nic_describe(const sl_nic *nics, size_t n, char *text, size_t cap)
{
    static const char *const links[] = {"infiniband", "ethernet", "other"};
    size_t used = 0;
    snprintf(text, cap, "none");
    for (size_t i = 0; i < n && used < cap; i++) {
        int w =
            snprintf(text + used, cap - used, "%s%s:%d(%s,%s,numa%d,%.0fGb/s%s%s)", used ? " " : "",
                     nics[i].device, nics[i].port, nics[i].active ? "active" : "down", links[nics[i].link],
                     nics[i].numa_node, nics[i].gbps, nics[i].netdev[0] ? "," : "", nics[i].netdev);
        used += w > 0 ? (size_t)w : 0;
    }
}
