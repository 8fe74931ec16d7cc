/*
 * Structured logging: one line per event, `key=value` pairs, to stderr (or JSON lines with sl_log_init).
 *
 *   sl_log(SL_LOG_INFO, "prefill", "commit", "rid=%016lx attempt=%u tokens=%d", rid, attempt, n);
 *   -> ts=2026-11-21T12:00:00.123Z level=info proc=prefill/1 comp=prefill ev=commit rid=… attempt=1 tokens=96
 *
 * Levels by volume: error = someone must look; warn = something was lost but handled; info = life-cycle, at
 * most a few lines per request; debug = per message; trace = per step. Threads: any; a line is written by one
 * write().
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
/* fmt yields space-separated key=value pairs; values with spaces are quoted by the caller ("\"%s\""). */
void sl_log(sl_log_level level, const char *comp, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Monotonic clock in nanoseconds; the only clock used for intervals and deadlines. */
uint64_t sl_now_ns(void);

#endif
