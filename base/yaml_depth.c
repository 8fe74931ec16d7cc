/* See yaml_depth.h. The text is read as events, which come long before the scanner reaches the last bracket. */
#include "base/yaml_depth.h"

#include <yaml.h>

static int step_of(const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return 1;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return -1;
    default:
        return 0;
    }
}

sl_status sl_yaml_check_depth(const char *text, size_t n, const char *name, sl_err *err)
{
    yaml_parser_t parser;
    yaml_event_t e;
    int depth = 0;
    size_t line = 0;
    if (!yaml_parser_initialize(&parser))
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    for (bool ended = false; !ended && depth <= SL_YAML_DEPTH_MAX && yaml_parser_parse(&parser, &e);) {
        depth += step_of(&e);
        line = e.start_mark.line + 1;
        ended = e.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&parser);
    if (depth > SL_YAML_DEPTH_MAX)
        return sl_fail(err, SL_ERR_INVALID, "%s:%zu: more than %d lists and maps in one another", name, line,
                       SL_YAML_DEPTH_MAX);
    return SL_OK;
}
