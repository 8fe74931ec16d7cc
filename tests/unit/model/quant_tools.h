/*
 * Quantised checkpoints for tests: takes a golden checkpoint, replaces weights by a published form of 8 or 4 bits, and
 * keeps a second checkpoint of which the same weights are the dequantised values in F32. The quantiser shares nothing with
 * the loader but the file format. A test fails when one of these functions fails.
 */
#ifndef SL_TEST_QUANT_TOOLS_H
#define SL_TEST_QUANT_TOOLS_H

#include "checkpoint_tools.h"

#define DS "tests/golden/model/ds-yarn"
#define F8 "tests/golden/model/ds-fp8"

typedef enum { INT4, NVFP4, NVFP4_MODELOPT, MXFP4, MXFP4_BYTES, F8_CHANNEL, F8_POWERS } kind;
typedef enum { EXPERTS, ALL, NO_ATTENTION, EVEN_EXPERTS_LAYERS, DOWN_ONLY } which;

typedef struct form {
    const char *name, *from, *config;
    kind kind;
    int group; /* 0: a whole output */
    which which;
    sl_st_dtype scale; /* of INT4 and F8_CHANNEL */
} form;

extern ct_list *qt_list, *qt_whole; /* the quantised checkpoint, and the dequantised one */
extern char qt_dir[256], qt_dir_whole[256];

/* Reads the checkpoint of the form and creates both directories. */
void qt_begin(const form *f);
/* Quantises the weights that the form chooses, and writes both checkpoints. */
void qt_make(const form *f);
void qt_end(void);
/* config.json of the form's source, with this quantization_config in place of its own; NULL: without. */
void qt_write_config(const form *f, const char *to, const char *quantisation);

#endif
