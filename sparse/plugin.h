/*
 * Algorithms outside this tree: a shared object that sparse_attention.plugin names. It defines one symbol, sluice_plugin, and may
 * call every function of the headers it includes: the ops of the backend (sl_be_run), options, errors.
 *
 *   static const sl_algo_desc *const algorithms[] = {&mine, NULL};
 *   SL_PLUGIN(algorithms);
 *
 * The table has a version and the sizes of the structs that both sides read, so an object that was compiled with other headers is refused
 * instead of misread. A hash of the file's bytes becomes a part of the stamp of pages: pages of another object never match, in
 * memory, in a storage tier or between workers, and workers with different objects of one name refuse each other. An object is code
 * that runs with all rights of the process; load none that you do not trust.
 *
 * docs/sparse-algorithms.md goes through an example. Loading belongs to the main thread, before other threads run; objects stay
 * loaded until the process ends.
 */
#ifndef SL_SPARSE_PLUGIN_H
#define SL_SPARSE_PLUGIN_H

#include "sparse/sparse.h"

/* Changes when the meaning of a struct or function changes that algorithms use, and sizes do not show it. */
enum { SL_PLUGIN_VERSION = 1, SL_PLUGIN_SIZES = 6, SL_PLUGIN_ALGORITHMS = 8, SL_PLUGIN_OPTIONS = 16 };

typedef struct sl_plugin {
    uint32_t version; /* SL_PLUGIN_VERSION; the first field in every version */
    uint32_t sizes[SL_PLUGIN_SIZES];
    const sl_algo_desc *const *algorithms; /* ends with NULL */
} sl_plugin;

#define SL_PLUGIN_SIZES_HERE                                                                                 \
    {                                                                                                        \
        sizeof(sl_algo_desc), sizeof(sl_algo_call), sizeof(sl_algo_dims), sizeof(sl_attn_call),              \
            sizeof(sl_option), sizeof(sl_cache_shape)                                                        \
    }
#define SL_PLUGIN(list)                                                                                      \
    extern const sl_plugin sluice_plugin;                                                                    \
    const sl_plugin sluice_plugin = {SL_PLUGIN_VERSION, SL_PLUGIN_SIZES_HERE, list}

/*
 * Loads an object and adds its algorithms to the registry (sl_algo_registry()). options: the tables of its algorithms, ends with NULL; may
 * be NULL. The same file again does nothing more. Errors name the file and the reason: SL_ERR_NOT_FOUND, SL_ERR_IO; SL_ERR_INVALID: not a
 * shared object, or without the symbol, or an algorithm that cannot be; SL_ERR_REFUSED: made for another version, or a
 * name that the registry has.
 */
sl_status sl_plugin_load(const char *path, const sl_options *const **options, sl_err *err);

#endif
