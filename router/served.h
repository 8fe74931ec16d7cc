/*
 * Loading of sl_served_model (router/core.h): what the router knows of the checkpoint that the cluster serves. It reads
 * the tokenizer and config.json, no weights. For the creation of the router only.
 */
#ifndef SL_ROUTER_SERVED_H
#define SL_ROUTER_SERVED_H

#include "router/core.h"

/*
 * Fills everything but m->chat. Without o->tokenizer, *own is the tokenizer that was loaded from o->model_path, and the
 * caller destroys it after m, even when a later part of the loading failed.
 */
sl_status sl_served_model_load(sl_served_model *m, const sl_router_opts *o, sl_tokenizer **own, sl_err *err);

#endif
