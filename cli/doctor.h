/*
 * What `sluice doctor` finds out about a host: a list of findings, each with the state of one thing and, if it is wrong or
 * could be better, what to do. The files of doctor_*.c fill the list; cmd_doctor.c prints it.
 *
 * What is read from /proc, /sys and /dev is read below a root directory, so that tests can make up a host. Main thread.
 */
#ifndef SL_CLI_DOCTOR_H
#define SL_CLI_DOCTOR_H

#include "base/config.h"
#include "base/status.h"

/* OK: as it should be. NOTE: works, but slower or with less safety than it could. WRONG: a process that needs this fails. */
typedef enum { SL_DOCTOR_OK, SL_DOCTOR_NOTE, SL_DOCTOR_WRONG } sl_doctor_level;
const char *sl_doctor_level_name(sl_doctor_level l);

typedef struct sl_finding {
    sl_doctor_level level;
    const char *topic;           /* "memory": constant */
    char text[400], advice[320]; /* advice "": nothing to do */
} sl_finding;

enum { SL_FINDINGS_MAX = 64 };
typedef struct sl_findings {
    sl_finding v[SL_FINDINGS_MAX];
    size_t n;
} sl_findings;

/* What the processes of this host will be. */
typedef struct sl_doctor_in {
    const char *root;     /* "" for this host */
    const sl_config *cfg; /* NULL: not known; then only what every process needs can be wrong */
    uint64_t memory_lock, open_files, processes; /* limits of this process; UINT64_MAX: none */
} sl_doctor_in;

/* Adds a finding; advice may be "". */
__attribute__((format(printf, 5, 6))) void sl_doctor_add(sl_findings *f, sl_doctor_level level,
                                                         const char *topic, const char *advice,
                                                         const char *text, ...);
/* The file root/path without its last newline, at most n - 1 bytes; false: it cannot be read, and out is "". */
bool sl_doctor_read(const sl_doctor_in *in, const char *path, char *out, size_t n);

/* Memory, huge pages, swap, limits, NUMA, CPU quota. */
void sl_doctor_memory(const sl_doctor_in *in, sl_findings *f);
void sl_doctor_kernel(const sl_doctor_in *in, sl_findings *f);
/* The driver, and the device of the configuration. */
void sl_doctor_device(const sl_doctor_in *in, sl_findings *f);
/* Transports of UCX, NICs, shared memory, the host's name, the clock. */
void sl_doctor_network(const sl_doctor_in *in, sl_findings *f);
void sl_doctor_clock(const sl_doctor_in *in, sl_findings *f);

#endif
