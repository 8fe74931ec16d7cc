/* Prints the result of `sluice generate` for human readers or as one JSON object. */
#include <math.h>
#include <stdlib.h>

#include <jansson.h>

#include "cli/generate.h"

static json_t *ids_json(const int32_t *ids, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, json_integer(ids[i]));
    return a;
}

/* JSON has no NaN and no infinities: they become null. A float printed as a double is read back unchanged. */
static json_t *logits_json(const float *v, int32_t n)
{
    json_t *a = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(a, isfinite(v[i]) ? json_real((double)v[i]) : json_null());
    return a;
}

static double hit_rate(const sl_engine_stats *s)
{
    uint64_t hits = s->hits + s->tail_hits, all = hits + s->misses;
    return all ? (double)hits / (double)all : 1.0;
}

static json_t *swap_json(const sl_engine_stats *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f}", "hits", (json_int_t)s->hits, "tail_hits",
                     (json_int_t)s->tail_hits, "misses", (json_int_t)s->misses, "evictions",
                     (json_int_t)s->evictions, "bytes", (json_int_t)s->swap_bytes, "hit_rate", hit_rate(s));
}

static double rate(size_t n, double s)
{
    return s > 0 ? (double)n / s : 0;
}

static sl_status print_json(const sl_local_run *r, const sl_local_run_opts *o, const char *text, size_t len,
                            FILE *to)
{
    size_t steps = r->n_output > 0 ? r->n_output - 1 : 0; /* the first token comes from prefill */
    json_t *j = json_object();
    json_object_set_new(j, "prompt_ids", ids_json(r->prompt, r->n_prompt));
    json_object_set_new(j, "ids", ids_json(r->output, r->n_output));
    json_object_set_new(j, "text", text ? json_stringn(text, len) : json_null());
    json_object_set_new(j, "finish_reason", json_string(r->stopped ? "stop" : "length"));
    json_object_set_new(j, "mode", json_string(o->hierarchical ? "hierarchical" : "resident"));
    json_object_set_new(j, "algorithm", json_string(r->local.algorithm->name));
    json_object_set_new(j, "indexer", json_string(sl_index_format_name(r->local.checkpoint.index_format)));
    json_object_set_new(j, "row_format", json_string(sl_row_format_name(r->local.checkpoint.row_format)));
    if (o->want_logits)
        json_object_set_new(j, "logits", logits_json(r->prompt_logits, r->local.checkpoint.cfg.vocab_size));
    json_object_set_new(j, "timing",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "load_s", r->local.load_s, "prefill_s",
                                  r->prefill_s, "decode_s", r->decode_s, "prefill_tokens_per_s",
                                  rate(r->n_prompt, r->prefill_s), "decode_tokens_per_s",
                                  rate(steps, r->decode_s)));
    json_object_set_new(j, "swap", swap_json(&r->stats));
    if (o->draft_tokens)
        json_object_set_new(j, "drafts",
                            json_pack("{s:I, s:I, s:I}", "steps", (json_int_t)r->steps, "drafted",
                                      (json_int_t)r->drafted, "accepted", (json_int_t)r->accepted));
    json_object_set_new(j, "device_bytes", json_integer((json_int_t)r->stats.device_bytes));
    int bad = json_dumpf(j, to, 0);
    json_decref(j);
    return bad || fputc('\n', to) == EOF ? SL_ERR_IO : SL_OK;
}

static void print_text(const sl_local_run *r, const sl_local_run_opts *o, const char *text, size_t len,
                       FILE *to)
{
    const sl_engine_stats *s = &r->stats;
    size_t steps = r->n_output > 0 ? r->n_output - 1 : 0;
    fprintf(to, "ids:");
    for (size_t i = 0; i < r->n_output; i++)
        fprintf(to, "%s%d", i ? "," : " ", r->output[i]);
    fputc('\n', to);
    if (text) {
        fprintf(to, "text: ");
        fwrite(text, 1, len, to);
        fputc('\n', to);
    }
    for (int32_t i = 0; o->want_logits && i < r->local.checkpoint.cfg.vocab_size; i++)
        fprintf(to, "%s%.9g", i ? "," : "logits: ", (double)r->prompt_logits[i]);
    if (o->want_logits)
        fputc('\n', to);
    fprintf(to, "finish: %s\n", r->stopped ? "stop" : "length");
    if (o->draft_tokens)
        fprintf(to, "drafts: %llu steps, %llu tokens drafted, %llu accepted\n", (unsigned long long)r->steps,
                (unsigned long long)r->drafted, (unsigned long long)r->accepted);
    fprintf(to, "algorithm: %s\n", r->local.algorithm->name);
    fprintf(to, "load %.2f s, prefill %zu tokens in %.3f s (%.1f/s), decode %zu tokens in %.3f s (%.1f/s)\n",
            r->local.load_s, r->n_prompt, r->prefill_s, rate(r->n_prompt, r->prefill_s), steps, r->decode_s,
            rate(steps, r->decode_s));
    if (s->tiles)
        fprintf(to, "attention: %llu tiles, %llu skipped\n", (unsigned long long)s->tiles,
                (unsigned long long)s->tiles_skipped);
    if (o->hierarchical)
        fprintf(to, "swap-in: %llu hits, %llu tail hits, %llu misses, %llu bytes, hit rate %.4f\n",
                (unsigned long long)s->hits, (unsigned long long)s->tail_hits, (unsigned long long)s->misses,
                (unsigned long long)s->swap_bytes, hit_rate(s));
}

sl_status sl_cli_print_run(const sl_local_run *r, const sl_local_run_opts *o, bool json, FILE *to,
                           sl_err *err)
{
    char *text = NULL;
    size_t len = 0;
    sl_status st = r->tok ? sl_tokenizer_decode(r->tok, r->output, r->n_output, true, &text, &len) : SL_OK;
    if (st != SL_OK)
        return sl_fail(err, st, "decoding the output failed");
    if (json)
        st = print_json(r, o, text, len, to);
    else
        print_text(r, o, text, len, to);
    free(text);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "cannot write the output");
}
