/*
 * Direct: a prefill worker writes rows straight into the pages of a decode worker on the same host, without a
 * transport; and how the decode worker takes that right back.
 *
 * The decode worker's arena is a memfd (kvstore/arena.h). A descriptor in PEER_WELCOME says where it is
 * (process and file descriptor number), and the writer maps it. A small control block is mapped with it, with
 * one entry per writer. The entry is the fence, as closing a connection is the fence of a transport: the owner
 * clears `granted` in it, the writer sets `busy` in it while it writes. Both use sequential consistency, so
 * that at least one of them sees what the other did:
 *
 *     writer: busy = 1;  if (!granted) { busy = 0; stop }  write...;  when all has landed: busy = 0
 *     owner:  granted = 0;  if (!busy) no further write of this writer can land
 *
 * A busy writer that hangs keeps its entry busy until it goes on (and then sees that it may not write any
 * more), or until its process has ended. A pidfd tells the latter: the kernel reports it after the process's
 * files, mappings and device contexts are gone, and with them every copy that was in flight. Until then the
 * pages stay in quarantine.
 *
 * An entry serves one grant (one connection) at a time. Being fenced is not enough to give it to another
 * writer: the former one could still read `granted`, which would then be the new writer's, or clear `busy`
 * while the new writer writes. It is given away only when the former writer can never touch it again:
 *
 *     the writer has detached      its last access to the entry says so
 *     the writer never attached    attaching is a compare-and-swap on the grant's number; the owner withdrew
 *                                  the offer first, and from then on attaching fails
 *     the writer's process ended   the pidfd says so
 *
 * So lost connections do not use entries up, whether or not the writer's process lives on.
 *
 * Threads: each object belongs to one thread at a time. Lifetime: destroying the owner's side does not end the
 * writers' mappings.
 */
#ifndef SL_WORKER_DIRECT_H
#define SL_WORKER_DIRECT_H

#include "base/status.h"
#include "base/wire.h"

enum { SL_DIRECT_SLOTS = 256, SL_DIRECT_DESC_MAX = 96 };

/* ---- owner: the decode worker ---- */

typedef struct sl_direct_host sl_direct_host;

/* arena_fd: of a shared arena, borrowed; bytes: how much of it may be written, from its beginning.
 * SL_ERR_UNSUPPORTED says what this system lacks. */
sl_status sl_direct_host_create(int arena_fd, uint64_t bytes, sl_direct_host **out, sl_err *err);
void sl_direct_host_destroy(sl_direct_host *h);
/* Grants the process writer_pid the right to write. desc[SL_DIRECT_DESC_MAX] gets the descriptor, n its length;
 * returns the entry's number (>= 0), or a negative status: EXHAUSTED, PEER (no such process), NO_MEMORY. */
int sl_direct_grant(sl_direct_host *h, uint32_t writer_pid, uint8_t *desc, size_t *n, sl_err *err);
/* Takes the right back. True: no write of that writer can land any more, and the number is no longer the
 * caller's. False: it has writes in flight; call again. */
bool sl_direct_revoke(sl_direct_host *h, int slot);

/* ---- writer: the prefill worker ---- */

typedef struct sl_direct sl_direct;

/* Maps what a descriptor names, once per grant. bytes: the size of the arena, as the peer says. UNSUPPORTED with
 * the reason when it cannot be reached from here (another host, another pid namespace or user) or the right was
 * taken back, CORRUPT when it is no descriptor. */
sl_status sl_direct_attach(const void *desc, size_t n, uint64_t bytes, sl_direct **out, sl_err *err);
/* Unmaps it and gives the entry back. No write may be in flight. NULL is fine. */
void sl_direct_detach(sl_direct *d);
uint8_t *sl_direct_base(const sl_direct *d);
uint64_t sl_direct_bytes(const sl_direct *d);
/* Before writes: false when the right was taken back, and nothing may be written. Calls nest; each true one
 * is followed by one sl_direct_end() when what it covers has landed. */
bool sl_direct_begin(sl_direct *d);
void sl_direct_end(sl_direct *d);

#endif
