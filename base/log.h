/*
 * Structured logging: one line per event, `key=value` pairs, to stderr (or JSON lines with sl_log_init).
 *
 *   sl_log(SL_LOG_INFO, "prefill", "commit", "rid=%016lx attempt=%u tokens=%d", rid, attempt, n);
 *   -> ts=2026-11-21T12:00:00.123Z level=info proc=prefill/1 comp=prefill ev=commit rid=… attempt=1 tokens=96
 *
 * Levels by volume: error = someone must look; warn = something was lost but handled; info = life-cycle, at most a few
 * lines per request; debug = per message; trace = per step.
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
 * fmt yields space-separated key=value pairs. The text of %s and %c may come from anybody: control bytes, quotes,
 * backslashes and invalid UTF-8 in it are escaped (\", \\, \x0a), and after a '=' it is put in quotes when it is empty
 * or has a space, so that it can forge neither a line nor a field. Literal text of fmt is trusted. Widths of %s are
 * ignored; %n, %a, %L and wide characters are not supported.
 */
void sl_log(sl_log_level level, const char *comp, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Starts the writer. SL_ERR_NO_MEMORY when its thread cannot be made; logging then works as before. */
sl_status sl_log_start(sl_err *err);
/* Waits until the lines so far are written, but not longer than that; false when some are not. Any thread. */
bool sl_log_flush(uint32_t timeout_ms);
/* Flushes and ends the writer. One that is blocked by its reader is abandoned: it ends with the process, and lines
 * after it are written only where that does not block. Also runs at exit(). Without a writer it does nothing. */
void sl_log_stop(uint32_t timeout_ms);
/* Lines lost since the start of the process: no room in the ring, or stderr refused them (its reader is gone). */
uint64_t sl_log_lines_lost(void);

/* Monotonic clock in nanoseconds; the only clock used for intervals and deadlines. */
uint64_t sl_now_ns(void);

#endif
