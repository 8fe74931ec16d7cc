/*
 * JSON helpers over jansson: parsing with file and position in errors, typed getters with the path in errors, and a
 * writer whose output equals that of Python's json.dumps(value, ensure_ascii=False), on which chat templates depend.
 *
 * Ownership: json_t and strings that a getter returns belong to the object. `where` names the object in errors, such as
 * "config.json: rope_parameters" or "messages[2]"; their text is "where.key: reason". Threads: any; a document belongs
 * to one thread at a time.
 */
#ifndef SL_BASE_JSON_H
#define SL_BASE_JSON_H

#include <jansson.h>

#include "base/guard.h"
#include "base/status.h"

/* How deeply a text is nested, and at most how many bytes parsing it takes, its values included: one pass, no memory.
 * The text need not be valid. */
typedef struct sl_json_cost {
    uint64_t bytes;
    unsigned depth;
} sl_json_cost;
sl_json_cost sl_json_measure(const char *text, size_t n);

/* Levels of arrays and objects that a text of a client may have: jansson, and what walks its values, recurse once a
 * level. */
enum { SL_JSON_DEPTH_MAX = 128 };

/* Parses n bytes, which may be any JSON value; duplicate keys are refused. Errors name the text `name`, such as a path
 * or "request body". *out is a new reference. */
sl_status sl_json_parse(const char *text, size_t n, const char *name, json_t **out, sl_err *err);
/* The same for the bytes of a client: the guard is looked at for every KiB of the text. CANCELLED: it was stopped. */
sl_status sl_json_parse_guarded(const sl_guard *g, const char *text, size_t n, const char *name, json_t **out,
                                sl_err *err);
/* Reads and parses a file of at most max_bytes. SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_TOO_LARGE or
 * SL_ERR_INVALID. */
sl_status sl_json_load(const char *path, size_t max_bytes, json_t **out, sl_err *err);

/* Required members: missing, null or of another type is SL_ERR_INVALID. Integers accept 3 and 3.0, bounds
 * inclusive. */
sl_status sl_json_get_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                          int64_t *out, sl_err *err);
sl_status sl_json_get_string(const json_t *obj, const char *where, const char *key, const char **out,
                             sl_err *err);
sl_status sl_json_get_array(const json_t *obj, const char *where, const char *key, json_t **out, sl_err *err);
sl_status sl_json_get_object(const json_t *obj, const char *where, const char *key, json_t **out,
                             sl_err *err);

/* Optional members: for a missing one or null *out is unchanged, so the caller sets the default first, and the result
 * is SL_OK. */
sl_status sl_json_opt_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                          int64_t *out, sl_err *err);
sl_status sl_json_opt_double(const json_t *obj, const char *where, const char *key, double min, double max,
                             double *out, sl_err *err);
sl_status sl_json_opt_bool(const json_t *obj, const char *where, const char *key, bool *out, sl_err *err);
sl_status sl_json_opt_string(const json_t *obj, const char *where, const char *key, const char **out,
                             sl_err *err);
sl_status sl_json_opt_array(const json_t *obj, const char *where, const char *key, json_t **out, sl_err *err);
sl_status sl_json_opt_object(const json_t *obj, const char *where, const char *key, json_t **out,
                             sl_err *err);

/* What json.dumps() of Python prints for a float, into buf of at least 32 bytes: repr(), NaN, Infinity or -Infinity. */
void sl_py_float(double v, char *buf, size_t n);

#endif
