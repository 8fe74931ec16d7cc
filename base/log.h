/*
 * Structured logging: one line per event, `key=value` pairs, to stderr (or JSON lines with sl_log_init).
 *
 *   sl_log(SL_LOG_INFO, "prefill", "commit", "rid=%016lx attempt=%u tokens=%d", rid, attempt, n);
 *   -> ts=2026-11-21T12:00:00.123Z level=info proc=prefill/1 comp=prefill ev=commit rid=… attempt=1 tokens=96
 *
 * Levels: error: somebody must act. warn: something was lost, and this was handled. info: life-cycle events, at most a
 * few lines per request. debug: each message. trace: each step.
 *
 * Threads: any. A line is at most 4096 bytes and is written by one write(), so that lines of several processes which
 * share a pipe do not mix. Before sl_log_start the caller writes its line itself; programs that serve start the writer,
 * and from then on no thread that logs waits for the reader of stderr: lines go into a bounded ring, a thread of its
 * own writes them, and lines for which the ring has no room are lost and counted. A child process made by fork() has
 * no writer and logs like a program that has not started one.
 */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#include "base/status.h"

typedef enum { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG, SL_LOG_TRACE } sl_log_level;

/* Sets the level, the format and this process's name ("decode/2"); called once at start, before threads. */
void sl_log_init(sl_log_level level, bool json, const char *process_name);
/* Parses "error".."trace". */
sl_status sl_log_level_parse(const char *text, sl_log_level *out);
bool sl_log_enabled(sl_log_level level);

/*
 * fmt describes key=value pairs that are separated by spaces. The text of %s and %c may come from a client: control
 * bytes, quotes, backslashes and invalid UTF-8 in it are escaped (\", \\, \x0a), and after a '=' it is put in quotes
 * when it is empty or has a space. So it cannot add a line or a field. The literal text of fmt is trusted. Widths of %s
 * are ignored; %n, %a, %L and wide characters are not supported.
 */
void sl_log(sl_log_level level, const char *comp, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Starts the writer. SL_ERR_NO_MEMORY when its thread cannot be made; logging then works as before. */
sl_status sl_log_start(sl_err *err);
/* Waits until all lines so far are written, at most timeout_ms; false: some are not. Any thread. */
bool sl_log_flush(uint32_t timeout_ms);
/* Flushes and ends the writer. A writer that its reader blocks is abandoned: its thread ends with the process, and
 * later lines are written only when that does not block. Runs at exit() as well. Without a writer it does nothing. */
void sl_log_stop(uint32_t timeout_ms);
/* The number of lines that are lost since the process started: the ring had no room, or stderr refused them because its
 * reader is gone. */
uint64_t sl_log_lines_lost(void);

/* Monotonic clock in nanoseconds; the only clock used for intervals and deadlines. */
uint64_t sl_now_ns(void);
/* From now on sl_now_ns() of the calling thread returns *ns, which the caller changes: the simulator runs code of the
 * product in virtual time. NULL: the real clock again. Other threads are not affected. */
void sl_now_virtual(const uint64_t *ns);

#endif
