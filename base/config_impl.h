/*
 * The rows of the configuration table, and functions that the files of the configuration share. Not for other rooms.
 */
#ifndef SL_BASE_CONFIG_IMPL_H
#define SL_BASE_CONFIG_IMPL_H

#include "base/config.h"

enum { SL_CFG_KEY_MAX = 128 }; /* bytes of a key with its terminating zero */

typedef enum {
    SL_CFG_STRING,
    SL_CFG_INT,
    SL_CFG_SIZE, /* bytes, uint64_t, suffix KiB MiB GiB TiB */
    SL_CFG_FLOAT,
    SL_CFG_BOOL,
    SL_CFG_ENUM,
    SL_CFG_CHOICE, /* the name of an entry of a registry, see sl_config_choice */
    SL_CFG_INT_LIST,
    SL_CFG_ENUM_LIST,
    SL_CFG_STRING_LIST /* {int n; char v[][SL_CFG_ITEM_BYTES]} */
} sl_cfg_type;

typedef struct sl_cfg_row {
    const char *
        key; /* "section.name" or "section.group.name"; rows of one section, and of one group, are adjacent */
    sl_cfg_type type;
    bool secret;
    size_t offset, size; /* field in sl_config */
    const char *dflt;    /* as text, in the form of --set */
    int64_t min, max;    /* inclusive; of numbers and of the elements of lists */
    /* Ends with NULL. Of an enumeration all names; of a choice those that its registry does not have, or NULL. */
    const char *const *names;
    const char *doc;
} sl_cfg_row;

extern const sl_cfg_row sl_cfg_rows[];
extern const size_t sl_cfg_nrows;

typedef struct sl_cfg_section {
    const char *name, *doc;
} sl_cfg_section;
extern const sl_cfg_section sl_cfg_sections[];
extern const size_t sl_cfg_nsections;

/* Row of an exact key, or NULL. */
const sl_cfg_row *sl_cfg_find(const char *key);
/* The known key that is most similar to a wrong one; NULL: none is similar. */
const char *sl_cfg_nearest(const char *key);
/* Name of the type with bounds or choices ("integer, 1 to 4096"), into buf. */
const char *sl_cfg_describe(const sl_cfg_row *row, char *buf, size_t n);

/* Sets the field of row from text: a scalar, or "a, b" / "[a, b]" for a list. Errors as sl_cfg_parse(). */
sl_status sl_cfg_set_text(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err);
/* Parses one scalar into a scalar field. The error text has the reason only; callers prepend the place and the key. */
sl_status sl_cfg_parse(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err);
void sl_cfg_list_clear(sl_config *cfg, const sl_cfg_row *row);
sl_status sl_cfg_list_add(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err);
/* True for the three kinds of list. */
bool sl_cfg_is_list(const sl_cfg_row *row);

#endif
