/* See doctor.h: the driver and the device, and the ways to other processes. */
#include "cli/doctor.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "transport/nic.h"
#include "transport/transport.h"

/* The version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun ...", or the line. */
static void driver_version(const char *line, char *out, size_t n)
{
    const char *at = strstr(line, "Module");
    const char *number = at ? strpbrk(at, "0123456789") : NULL;
    snprintf(out, n, "%.*s", number ? (int)strcspn(number, " \n") : (int)strcspn(line, "\n"),
             number ? number : line);
}

static void check_driver(const sl_doctor_in *in, bool wanted, sl_findings *f)
{
    char text[512], version[64];
    const sl_doctor_level bad = wanted ? SL_DOCTOR_WRONG : SL_DOCTOR_NOTE;
    if (!sl_doctor_read(in, "/proc/driver/nvidia/version", text, sizeof text)) {
        sl_doctor_add(f, bad, "driver",
                      wanted ? "install the NVIDIA driver of this kernel, or set backend.name: cpu" : "",
                      "no NVIDIA driver is loaded: only backend.name: cpu works here");
        return;
    }
    driver_version(text, version, sizeof version);
    sl_doctor_add(f, SL_DOCTOR_OK, "driver", "", "NVIDIA %s", version);
    if (in->root[0])
        return;
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!lib)
        sl_doctor_add(f, bad, "CUDA",
                      "start the container with --gpus all, or install the libcuda of the driver's version",
                      "the driver is loaded, but its library libcuda.so.1 is not found");
    else
        dlclose(lib);
}

/* Opens the device as a worker would. */
static void check_backend(const sl_doctor_in *in, bool wanted, sl_findings *f)
{
    sl_backend *be = NULL;
    sl_err err = {0};
    const int device = in->cfg ? sl_config_device(&in->cfg->backend, -1) : -1;
    sl_backend_opts o = {.device = device > 0 ? device : 0};
    const char *name = in->cfg ? in->cfg->backend.name : "cuda";
    if (sl_backend_create(name, &o, &be, &err) != SL_OK) {
        sl_doctor_add(f, wanted ? SL_DOCTOR_WRONG : SL_DOCTOR_NOTE, "CUDA",
                      wanted ? "repair what it says, or set backend.name: cpu" : "", "backend %s: %s", name,
                      err.text);
        return;
    }
    uint64_t left = 0, total = 0;
    sl_be_memory(be, &left, &total, NULL);
    const bool busy = !(sl_backend_caps(be) & SL_BE_UNIFIED) && left < total - total / 10;
    sl_doctor_add(f, busy ? SL_DOCTOR_NOTE : SL_DOCTOR_OK, "device",
                  busy ? "nvidia-smi names the processes that have the rest" : "",
                  "%s: %s; %.1f of %.1f GiB are free", name, sl_backend_describe(be),
                  (double)left / (1 << 30), (double)total / (1 << 30));
    sl_backend_destroy(be);
}

void sl_doctor_device(const sl_doctor_in *in, sl_findings *f)
{
    const bool wanted = in->cfg && strcmp(in->cfg->backend.name, "cuda") == 0;
    check_driver(in, wanted, f);
    if (!in->root[0])
        check_backend(in, wanted, f);
}

static void check_nics(const sl_doctor_in *in, sl_findings *f)
{
    sl_nic nics[SL_NIC_MAX];
    sl_err err = {0};
    char text[320] = "", module[16];
    size_t n = 0, active = 0;
    if (sl_nic_list(nics, SL_COUNT(nics), &n, &err) != SL_OK) {
        sl_doctor_add(f, SL_DOCTOR_NOTE, "NICs", "", "%s", err.text);
        return;
    }
    for (size_t i = 0; i < n; i++)
        active += nics[i].active;
    sl_nic_describe(nics, n, text, sizeof text);
    if (n == 0)
        sl_doctor_add(f, SL_DOCTOR_NOTE, "NICs",
                      "install rdma-core and the driver of the NIC, if there is one",
                      "no RDMA device: hosts exchange pages over TCP");
    else
        sl_doctor_add(f, active ? SL_DOCTOR_OK : SL_DOCTOR_NOTE, "NICs",
                      active ? "" : "ibstat and rdma link say why no port is active", "%s", text);
    if (active && !sl_doctor_read(in, "/sys/module/nvidia_peermem/initstate", module, sizeof module) &&
        sl_doctor_read(in, "/proc/driver/nvidia/version", module, sizeof module))
        sl_doctor_add(
            f, SL_DOCTOR_NOTE, "NICs",
            "modprobe nvidia_peermem, unless the kernel has DMA-BUF for the driver",
            "the module nvidia_peermem is not loaded: NICs may not reach GPU memory, pages go by host memory");
}

static void check_transport(const sl_doctor_in *in, sl_findings *f)
{
    sl_tp_options o = sl_tp_options_default();
    sl_transport *tp = NULL;
    sl_err err = {0};
    static const char name[] = "ucx";
    if (in->cfg)
        o.tls = in->cfg->cluster.tls;
    if (sl_transport_create(name, &o, &tp, &err) != SL_OK) {
        sl_doctor_add(f, SL_DOCTOR_WRONG, "transport",
                      "cluster.tls, or UCX_* in the environment, names what this host does not have: "
                      "ucx_info -d lists what it has",
                      "%s cannot be opened: %s", name, err.text);
        return;
    }
    sl_tp_info info;
    tp->ops->query(tp, &info);
    sl_doctor_add(f, SL_DOCTOR_OK, "transport", "", "%s %s: %s on %s", name, info.version, info.transports,
                  info.devices);
    if (!info.device_memory)
        sl_doctor_add(f, SL_DOCTOR_NOTE, "transport", "", "GPU memory is not sent directly: %s",
                      info.no_device_memory);
    sl_tp_destroy(tp);
}

static void check_name(sl_findings *f)
{
    char name[256] = "";
    struct addrinfo *found = NULL;
    gethostname(name, sizeof name - 1);
    int rc = getaddrinfo(name, NULL, NULL, &found);
    sl_doctor_add(f, rc ? SL_DOCTOR_NOTE : SL_DOCTOR_OK, "host name",
                  rc ? "add a line for it to /etc/hosts; mpirun and cluster.routers use names" : "", "%s%s%s",
                  name, rc ? " is not found: " : "", rc ? gai_strerror(rc) : "");
    if (found)
        freeaddrinfo(found);
}

void sl_doctor_network(const sl_doctor_in *in, sl_findings *f)
{
    check_transport(in, f);
    check_nics(in, f);
    check_name(f);
}
