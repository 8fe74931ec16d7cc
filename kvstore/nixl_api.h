/*
 * The part of NIXL's C interface that the NIXL tier uses, opened at run time from `libnixl_capi.so` (the PyPI package nixl-cu12
 * or nixl-cu13, 1.5 or later). Nothing of NIXL is needed to build Sluice, and no header: these are prototypes of our
 * own for its exported functions. That a library has all of them is the version check.
 *
 * NIXL moves bytes between registered memory and registered files or objects, by a back-end plug-in (POSIX, OBJ for S3,
 * GDS…). It finds its plug-ins next to the library, or in NIXL_PLUGIN_DIR. One thread at a time may use an agent.
 */
#ifndef SL_KVSTORE_NIXL_API_H
#define SL_KVSTORE_NIXL_API_H

#include "base/status.h"

/* NIXL's handles. */
typedef struct nixl_agent nixl_agent;
typedef struct nixl_params nixl_params;
typedef struct nixl_backend nixl_backend;
typedef struct nixl_options nixl_options;
typedef struct nixl_regions nixl_regions;   /* memory, files or objects to register */
typedef struct nixl_segments nixl_segments; /* what a transfer reads or writes */
typedef struct nixl_transfer nixl_transfer;
typedef struct nixl_answers nixl_answers; /* of a query */
typedef struct nixl_mems nixl_mems;       /* list of kinds of memory */
typedef struct nixl_names nixl_names;

enum { NIXL_DONE = 0, NIXL_RUNNING = 1 };               /* statuses; failures are negative */
enum { NIXL_DRAM = 0, NIXL_OBJECT = 3, NIXL_FILE = 4 }; /* kinds of memory */
enum { NIXL_READ = 0, NIXL_WRITE = 1 };

/* X(member, exported name after nixl_capi_, arguments); each returns a status. */
#define SL_NIXL_FUNCTIONS(X)                                                                                 \
    X(create_agent, create_agent, (const char *name, nixl_agent **out))                                      \
    X(destroy_agent, destroy_agent, (nixl_agent * a))                                                        \
    X(plugins, get_available_plugins, (nixl_agent * a, nixl_names * *out))                                   \
    X(names_size, string_list_size, (nixl_names * l, size_t * n))                                            \
    X(names_get, string_list_get, (nixl_names * l, size_t i, const char **out))                              \
    X(names_free, destroy_string_list, (nixl_names * l))                                                     \
    X(create_params, create_params, (nixl_params * *out))                                                    \
    X(params_add, params_add, (nixl_params * p, const char *key, const char *value))                         \
    X(destroy_params, destroy_params, (nixl_params * p))                                                     \
    X(create_backend, create_backend,                                                                        \
      (nixl_agent * a, const char *plugin, nixl_params *p, nixl_backend **out))                              \
    X(destroy_backend, destroy_backend, (nixl_backend * b))                                                  \
    X(backend_params, get_backend_params,                                                                    \
      (nixl_agent * a, nixl_backend * b, nixl_mems * *mems, nixl_params * *params))                          \
    X(mems_size, mem_list_size, (nixl_mems * l, size_t * n))                                                 \
    X(mems_get, mem_list_get, (nixl_mems * l, size_t i, int *kind))                                          \
    X(mems_free, destroy_mem_list, (nixl_mems * l))                                                          \
    X(create_options, create_opt_args, (nixl_options * *out))                                                \
    X(options_add_backend, opt_args_add_backend, (nixl_options * o, nixl_backend * b))                       \
    X(destroy_options, destroy_opt_args, (nixl_options * o))                                                 \
    X(create_regions, create_reg_dlist, (int kind, nixl_regions **out))                                      \
    X(regions_add, reg_dlist_add_desc,                                                                       \
      (nixl_regions * r, uintptr_t address, size_t n, uint64_t device, const void *name, size_t name_n))     \
    X(destroy_regions, destroy_reg_dlist, (nixl_regions * r))                                                \
    X(register_mem, register_mem, (nixl_agent * a, nixl_regions * r, nixl_options * o))                      \
    X(deregister_mem, deregister_mem, (nixl_agent * a, nixl_regions * r, nixl_options * o))                  \
    X(create_segments, create_xfer_dlist, (int kind, nixl_segments **out))                                   \
    X(segments_add, xfer_dlist_add_desc, (nixl_segments * s, uintptr_t address, size_t n, uint64_t device))  \
    X(destroy_segments, destroy_xfer_dlist, (nixl_segments * s))                                             \
    X(create_transfer, create_xfer_req,                                                                      \
      (nixl_agent * a, int op, nixl_segments *local, nixl_segments *remote, const char *agent,               \
       nixl_transfer **out, nixl_options *o))                                                                \
    X(post, post_xfer_req, (nixl_agent * a, nixl_transfer * t, nixl_options * o))                            \
    X(status, get_xfer_status, (nixl_agent * a, nixl_transfer * t))                                          \
    X(release_transfer, release_xfer_req, (nixl_agent * a, nixl_transfer * t))                               \
    X(destroy_transfer, destroy_xfer_req, (nixl_transfer * t))                                               \
    X(create_answers, create_query_resp_list, (nixl_answers * *out))                                         \
    X(query, query_mem, (nixl_agent * a, nixl_regions * r, nixl_answers * out, nixl_options * o))            \
    X(answers_has, query_resp_list_has_value, (nixl_answers * l, size_t i, bool *out))                       \
    X(destroy_answers, destroy_query_resp_list, (nixl_answers * l))

typedef struct sl_nixl_api {
#define SL_NIXL_MEMBER(member, name, arguments) int(*member) arguments;
    SL_NIXL_FUNCTIONS(SL_NIXL_MEMBER)
#undef SL_NIXL_MEMBER
} sl_nixl_api;

/*
 * Opens the library, once in a process; it is never closed, because threads of NIXL may still run. path: a file, or a name for
 * the system's search. SL_ERR_UNSUPPORTED with the reason: it is not there, or lacks a function.
 */
sl_status sl_nixl_open(const char *path, const sl_nixl_api **out, sl_err *err);

#endif
