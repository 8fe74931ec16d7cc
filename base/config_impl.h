/*
 * The rows of the configuration, and functions that the files of the configuration share. Not for other rooms.
 */
#ifndef SL_BASE_CONFIG_IMPL_H
#define SL_BASE_CONFIG_IMPL_H

#include "base/config.h"

enum { SL_CFG_KEY_MAX = 128 };    /* bytes of a key with its terminating zero */
enum { SL_CFG_SET = UINT16_MAX }; /* in sl_config.given: by --set */

/* An option of the configuration itself, or of an implementation that was bound. Rows of one section, and of one group in
 * it, are adjacent within those of the configuration and within those of an implementation. */
typedef struct sl_cfg_row {
    char key[SL_CFG_KEY_MAX]; /* "section.name" or "section.group.name" */
    const sl_option *o;
    size_t at;              /* of the struct of values in sl_config */
    const sl_options *part; /* NULL: the configuration itself */
    int32_t next;           /* the next row with the same key, of another implementation; -1: none */
    bool first;             /* the first row with this key */
} sl_cfg_row;

/* The options of the configuration itself, whose names are whole keys. */
extern const sl_option sl_cfg_own[];
extern const size_t sl_cfg_nown;

/* All rows. Made by sl_config_bind(), or without it by sl_cfg_ready(), which does nothing later. */
void sl_cfg_ready(void);
extern sl_cfg_row sl_cfg_rows[SL_CFG_MAX_ROWS];
extern size_t sl_cfg_nrows;

typedef struct sl_cfg_section {
    const char *name, *doc;
} sl_cfg_section;
extern const sl_cfg_section sl_cfg_sections[];
extern const size_t sl_cfg_nsections;

/* The first row of an exact key, or NULL. */
const sl_cfg_row *sl_cfg_find(const char *key);
/*
 * Why a key is unknown, with the key that replaces it or the known one that is most similar:
 * "unknown key; did you mean model.path?". Into buf.
 */
const char *sl_cfg_unknown(const char *key, char *buf, size_t n);
/* Keys of former versions, and what replaces each. */
typedef struct sl_cfg_gone_key {
    const char *key, *instead;
} sl_cfg_gone_key;
extern const sl_cfg_gone_key sl_cfg_gone_keys[];
extern const size_t sl_cfg_ngone;
/* What replaces a key that former versions had; NULL: it is none of them. */
const char *sl_cfg_gone(const char *key);

/* Loads a plug-in whose options begin in *cfg with their defaults; nothing for an empty path. cfg may be NULL. */
sl_status sl_cfg_plugin(sl_config *cfg, const char *path, sl_err *err);
/* The key that names one; it is read before all others. */
#define SL_CFG_PLUGIN_KEY "sparse_attention.plugin"

/* The values of a row's table in this configuration. */
void *sl_cfg_values(sl_config *cfg, const sl_cfg_row *row);
/* Whether the implementation of a row is the one that is used; true for rows of the configuration itself. */
bool sl_cfg_used(const sl_config *cfg, const sl_cfg_row *row);
/* One scalar, or a whole list as --set has it, into every row of the key; `given` says by whom: a line, or SL_CFG_SET. */
sl_status sl_cfg_set(sl_config *cfg, const sl_cfg_row *row, const char *text, size_t given, sl_err *err);
void sl_cfg_clear(sl_config *cfg, const sl_cfg_row *row, size_t given);
sl_status sl_cfg_add(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err);

#endif
