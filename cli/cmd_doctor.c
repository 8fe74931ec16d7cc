/*
 * `sluice doctor`: what of this host a cluster needs, what is wrong, and what to do. With --config also what the processes
 * of that configuration need. Exit code 1: something is wrong.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "cli/config_load.h"
#include "cli/config_start.h"
#include "cli/doctor.h"

static uint64_t limit_of(int which)
{
    struct rlimit lim;
    if (getrlimit((__rlimit_resource_t)which, &lim) || lim.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return lim.rlim_cur;
}

static void print_text(const sl_findings *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const sl_finding *o = &f->v[i];
        printf("%-6s %-14s %s\n", sl_doctor_level_name(o->level), o->topic, o->text);
        if (o->advice[0])
            printf("%-6s %-14s   what to do: %s\n", "", "", o->advice);
    }
}

static int print_json(const sl_findings *f, bool good)
{
    json_t *list = json_array(), *all = json_pack("{s:b, s:o}", "ok", good, "findings", list);
    for (size_t i = 0; i < f->n; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "level",
                                              sl_doctor_level_name(f->v[i].level), "topic", f->v[i].topic,
                                              "text", f->v[i].text, "advice", f->v[i].advice));
    int bad = !all || json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
    return bad;
}

static void look(const sl_doctor_in *in, sl_findings *f)
{
    sl_err err = {0};
    sl_doctor_device(in, f);
    sl_doctor_network(in, f);
    sl_doctor_memory(in, f);
    sl_doctor_kernel(in, f);
    sl_doctor_clock(in, f);
    if (!in->cfg)
        return;
    if (sl_cli_check_start(in->cfg, true, NULL, &err) != SL_OK)
        sl_doctor_add(f, SL_DOCTOR_WRONG, "configuration", "", "%s", err.text);
    else
        sl_doctor_add(f, SL_DOCTOR_OK, "configuration", "", "%s can be started here", in->cfg->file);
}

int sl_cmd_doctor(int argc, char **argv)
{
    static sl_config cfg; /* large; this runs once per process */
    static sl_findings found;
    sl_cli_config_args config = {0};
    bool json = false;
    int exit_code;
    sl_err err = {0};
    const sl_arg args[] = {
        SL_CLI_CONFIG_ARGS(config),
        {"json", SL_ARG_FLAG, &json, NULL, "Print one JSON object.", 0, 0, NULL},
    };
    if (!sl_args_ready("[--config FILE] [--set KEY=VALUE]... [--json]", args, SL_COUNT(args), argc, argv,
                       &exit_code))
        return exit_code;
    sl_doctor_in in = {.root = "",
                       .memory_lock = limit_of(RLIMIT_MEMLOCK),
                       .open_files = limit_of(RLIMIT_NOFILE),
                       .processes = limit_of(RLIMIT_NPROC)};
    if (config.file || config.sets.n) {
        sl_status st = sl_cli_config_load(&config, &cfg, &err);
        if (st != SL_OK)
            return sl_args_fail("doctor", st, &err);
        in.cfg = &cfg;
    }
    sl_log_init(SL_LOG_ERROR, false, "doctor"); /* the findings say what there is to say */
    look(&in, &found);
    size_t wrong = 0, notes = 0;
    for (size_t i = 0; i < found.n; i++) {
        wrong += found.v[i].level == SL_DOCTOR_WRONG;
        notes += found.v[i].level == SL_DOCTOR_NOTE;
    }
    if (json && print_json(&found, wrong == 0))
        return sl_args_fail("doctor", SL_ERR_NO_MEMORY, NULL);
    if (!json) {
        print_text(&found);
        printf("%zu wrong, %zu could be better\n", wrong, notes);
    }
    return wrong ? SL_EXIT_FAILED : SL_EXIT_OK;
}
