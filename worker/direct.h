/*
 * Direct: lets a prefill worker write rows into the pages of a decode worker on the same host without a transport, and
 * lets the decode worker take that right back.
 *
 * The decode worker's arena is a memfd (kvstore/arena.h). A descriptor in PEER_WELCOME says where it is (process and
 * file descriptor number), and the writer maps it, together with a small control block that has one entry per writer.
 * The entry is the fence, as closing a connection is the fence of a transport: the owner clears `granted` in the entry,
 * the writer sets `busy` in it while it writes. Both use sequential consistency, so that at least one of them sees what
 * the other did:
 *
 *     writer: busy = 1;  if (!granted) { busy = 0; stop }  write...;  when all has landed: busy = 0
 *     owner:  granted = 0;  if (!busy) no further write of this writer can land
 *
 * A busy writer that hangs keeps its entry busy until it continues, and then sees that it may not write any more, or
 * until its process has ended. A pidfd shows the end of the process: the kernel reports it after the process's files,
 * mappings and device contexts are gone, and with them every copy that was in flight. Until then the pages stay in
 * quarantine.
 *
 * An entry serves one grant (one connection) at a time. A fenced entry must not be given to another writer at once: the
 * former writer could still read `granted`, which is now that of the new writer, or clear `busy` while the new writer
 * writes. The entry is free when the former writer can never access it again:
 *
 *     the writer has detached      its last access to the entry shows it
 *     the writer never attached    attaching is a compare-and-swap on the number of the grant; the owner withdrew
 *                                  the offer first, so attaching fails from then on
 *     the writer's process ended   the pidfd shows it
 *
 * So lost connections do not use up the entries, whether the writer's process continues or not.
 *
 * Threads: each object belongs to one thread at a time. Lifetime: destroying the owner's side does not end the writers'
 * mappings.
 */
#ifndef SL_WORKER_DIRECT_H
#define SL_WORKER_DIRECT_H

#include "base/status.h"
#include "base/wire.h"

enum { SL_DIRECT_SLOTS = 256, SL_DIRECT_DESC_MAX = 96 };

/* ---- owner: the decode worker ---- */

typedef struct sl_direct_host sl_direct_host;

/*
 * arena_fd: the file descriptor of a shared arena, borrowed. bytes: the size of the part, from the beginning of the
 * arena, that may be written. SL_ERR_UNSUPPORTED: err says what this system lacks.
 */
sl_status sl_direct_host_create(int arena_fd, uint64_t bytes, sl_direct_host **out, sl_err *err);
void sl_direct_host_destroy(sl_direct_host *h);
/*
 * Grants the process writer_pid the right to write. desc[SL_DIRECT_DESC_MAX] receives the descriptor, *n its length.
 * Returns the number of the entry (>= 0), or a negative status: EXHAUSTED, PEER (no such process), NO_MEMORY.
 */
int sl_direct_grant(sl_direct_host *h, uint32_t writer_pid, uint8_t *desc, size_t *n, sl_err *err);
/*
 * Takes the right back. True: no write of that writer can land any more, and the caller must not use the number of the
 * entry again. False: the writer has writes in flight; call again.
 */
bool sl_direct_revoke(sl_direct_host *h, int slot);

/* ---- writer: the prefill worker ---- */

typedef struct sl_direct sl_direct;

/*
 * Maps the arena that a descriptor names; once per grant. bytes: the size of the arena according to the peer.
 * UNSUPPORTED, with the reason, when the arena is not accessible (another host, pid namespace or user) or the right was
 * taken back; CORRUPT when desc is not a descriptor.
 */
sl_status sl_direct_attach(const void *desc, size_t n, uint64_t bytes, sl_direct **out, sl_err *err);
/* Unmaps the arena and releases the entry. No write may be in flight. d may be NULL. */
void sl_direct_detach(sl_direct *d);
uint8_t *sl_direct_base(const sl_direct *d);
uint64_t sl_direct_bytes(const sl_direct *d);
/*
 * To be called before writing. False: the right was taken back, and nothing may be written. Calls nest; for each call
 * that returned true, call sl_direct_end() once when the writes have landed.
 */
bool sl_direct_begin(sl_direct *d);
void sl_direct_end(sl_direct *d);

#endif
