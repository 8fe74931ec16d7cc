/*
 * Direct: a prefill worker writes rows straight into the pages of a decode worker of the same host, with no
 * transport in between; and how that right is taken back.
 *
 * The decode worker's arena is a memfd (kvstore/arena.h). A descriptor in PEER_WELCOME says where it is
 * (process and descriptor number), and the writer maps it. Beside it lies a small control block with one
 * entry per writer, which is what closing a connection is for a transport: the fence. The owner takes the
 * right away in the entry, the writer says in it when it has writes on their way, both with sequential
 * consistency, so one of them always sees the other:
 *
 *     writer: busy = 1;  if (!granted) { busy = 0; stop }  write...;  when all has landed: busy = 0
 *     owner:  granted = 0;  if (!busy) nothing of this writer can land any more
 *
 * A busy writer that hangs keeps its entry busy until it goes on (and then sees that it may not), or until
 * its process has ended, which a pidfd tells: the kernel reports that after the process's files, mappings and
 * device contexts are gone, and with them every copy that was on its way. Until then the pages stay in
 * quarantine. An entry is given to another writer only when the process of the former one has ended.
 *
 * Threads: each object belongs to one thread. Lifetime: destroy of the owner's side does not end writers'
 * mappings.
 */
#ifndef SL_WORKER_DIRECT_H
#define SL_WORKER_DIRECT_H

#include "base/status.h"
#include "base/wire.h"

enum { SL_DIRECT_SLOTS = 256, SL_DIRECT_DESC_MAX = 96 };

/* ---- owner: the decode worker ---- */

typedef struct sl_direct_host sl_direct_host;

/* arena_fd: a shared arena's, borrowed; bytes: what of it may be written. SL_ERR_UNSUPPORTED says what this
 * system lacks. */
sl_status sl_direct_host_create(int arena_fd, uint64_t bytes, sl_direct_host **out, sl_err *err);
void sl_direct_host_destroy(sl_direct_host *h);
/* A right to write for the process writer_pid. desc[SL_DIRECT_DESC_MAX] gets the descriptor, n its length;
 * returns the entry's number (>= 0), or a negative status: UNSUPPORTED, EXHAUSTED, PEER (no such process). */
int sl_direct_grant(sl_direct_host *h, uint32_t writer_pid, uint8_t *desc, size_t *n, sl_err *err);
/* Takes the right back. True: nothing of that writer can land any more; the entry is free. False: it has
 * writes on their way; ask again. */
bool sl_direct_revoke(sl_direct_host *h, int slot);

/* ---- writer: the prefill worker ---- */

typedef struct sl_direct sl_direct;

/* Maps what a descriptor names. bytes: what the peer says its arena has. UNSUPPORTED with the reason when it
 * cannot be reached from here (another host, another pid namespace or user), CORRUPT when it is no
 * descriptor. */
sl_status sl_direct_attach(const void *desc, size_t n, uint64_t bytes, sl_direct **out, sl_err *err);
/* No write may be on its way. NULL is fine. */
void sl_direct_detach(sl_direct *d);
uint8_t *sl_direct_base(const sl_direct *d);
uint64_t sl_direct_bytes(const sl_direct *d);
/* Before writes: false when the right was taken back, and nothing may be written. Calls nest; each true one
 * is followed by one sl_direct_end() when what it covers has landed. */
bool sl_direct_begin(sl_direct *d);
void sl_direct_end(sl_direct *d);

#endif
