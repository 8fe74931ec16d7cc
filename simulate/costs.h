/*
 * Costs: how long the parts of a cluster take, as measured. A YAML file (simulate/costs/) has one value, or one list of
 * values, for each key of the table in costs.c; the comment next to each value in the files says where it was measured.
 *
 * All functions are pure. Times are in ns, sizes in bytes, lengths in tokens.
 */
#ifndef SL_SIMULATE_COSTS_H
#define SL_SIMULATE_COSTS_H

#include <stdint.h>

#include "base/status.h"

enum { SL_SIM_POINTS = 64 };

typedef struct sl_sim_list {
    int32_t n;
    double v[SL_SIM_POINTS];
} sl_sim_list;

/* What a device that moves pages needs. gb_per_s 0: the cluster does not have it. */
typedef struct sl_sim_device {
    double read_gb_per_s, write_gb_per_s, us; /* us: added to each operation of a batch of pages */
} sl_sim_device;

typedef struct sl_sim_costs {
    double request_us, request_ns_per_token; /* HTTP and tokenization, before the router has the request */
    double message_us;                       /* from the router to a worker and back */
    double exchange_us; /* of a step of a group: what its ranks wait for each other's rows */
    double kv_bytes_per_token;
    struct {
        bool host; /* it computes on CPUs (worker/order.h) */
        /* step_ms[i * contexts + j]: a step of chunks[i] tokens that follow contexts[j] tokens */
        sl_sim_list chunks, contexts, step_ms;
    } prefill;
    struct {
        sl_sim_list batches, step_ms; /* by the number of requests in the step, with short contexts */
        double ms_per_million_tokens; /* more, by the sum of their contexts */
        double device_bytes; /* of the device for the cache; 0: only decode.max_batch bounds the batch */
        double bytes_per_request, bytes_per_token;
        double join_us, join_ns_per_token; /* of a request that joins the batch, added to its first step */
    } decode;
    struct {
        double gb_per_s, us;
    } link; /* of each worker: shipping and fetching of pages */
    sl_sim_device disk, shared;
    double shared_bytes; /* capacity of the shared store, of all decode workers together */
    double checksum_gb_per_s;
    struct {
        double host_gib, disk_gib, prefill, decode;
    } price; /* of one GiB for one worker, of one worker; in one unit of any kind */
} sl_sim_costs;

/* Errors name the file, the line, the key and the reason. SL_ERR_INVALID, SL_ERR_NOT_FOUND, SL_ERR_NO_MEMORY. */
sl_status sl_sim_costs_parse(const char *text, size_t n, const char *name, sl_sim_costs *out, sl_err *err);
sl_status sl_sim_costs_load(const char *path, sl_sim_costs *out, sl_err *err);

/* A prefill step of `tokens` tokens in all, of which n follow `context` tokens: their share of its time. */
double sl_sim_prefill_ns(const sl_sim_costs *c, double tokens, double n, double context);
/* A decode step of `batch` requests whose contexts have `tokens` tokens in all. */
double sl_sim_decode_ns(const sl_sim_costs *c, int32_t batch, double tokens);
/* The time of `bytes` at a rate; 0 for a rate of 0. */
static inline double sl_sim_move_ns(double bytes, double gb_per_s)
{
    return gb_per_s > 0 ? bytes / gb_per_s : 0;
}

#endif
