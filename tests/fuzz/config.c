/*
 * YAML configuration: arbitrary bytes either load or give an error text. What loads must pass finish, and its dump
 * must load again with the same values. The first byte chooses between a file and a --set assignment.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static sl_config defaults, cfg, again;
    static bool ready;
    sl_err err = {0};
    if (!ready)
        sl_config_init(&defaults);
    ready = true;
    if (!size)
        return 0;
    cfg = defaults;
    sl_status st;
    if (data[0] == '!') {
        char *text = strndup((const char *)data + 1, size - 1);
        st = sl_config_set(&cfg, text, &err);
        free(text);
    } else {
        st = sl_config_load_text(&cfg, (const char *)data, size, "fuzz.yaml", &err);
    }
    if (st) {
        if (!err.text[0])
            abort(); /* an error without a reason */
        return 0;
    }
    cfg.router.api_key_file[0] = '\0'; /* no file access */
    cfg.router.api_key[0] = '\0';      /* masked in the dump */
    char *dump = sl_config_dump(&cfg);
    again = defaults;
    if (sl_config_load_text(&again, dump, strlen(dump), "dump.yaml", &err))
        abort();
    memcpy(again.given, cfg.given, sizeof cfg.given); /* who has set a key differs, the values do not */
    memcpy(again.file, cfg.file, sizeof cfg.file);
    if (memcmp(&cfg, &again, sizeof cfg))
        abort();
    free(dump);
    (void)sl_config_finish(&cfg, &err);
    return 0;
}
