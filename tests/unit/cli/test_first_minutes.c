/*
 * What somebody meets who has just installed the program: help of every command with an example that the command accepts,
 * manual pages, wrong words, and `sluice config check` for what would fail at the start. argv[1]: the program.
 */
#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/unit/cli/program.h"

#define CHECK                                                                                                \
    "config check configs/one-host.yaml --set router.http_port=0 --set router.grpc_port=0 --set metrics.port=0 "

/* The output of the last run, which the next one overwrites; the caller frees it. */
static char *kept(void)
{
    char *text = strdup(output);
    ck_assert_ptr_nonnull(text);
    return text;
}

/* Calls each for every command and every action of one, as "cache stat". */
static void for_all_commands(void (*each)(const char *command))
{
    char name[160];
    ck_assert_int_eq(run("--help=commands", false), 0);
    char *commands = kept();
    int n = 0;
    for (char *at = commands; *at; at += strcspn(at, "\n") + 1, n++) {
        char line[64], args[96];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\t"), at);
        each(line);
        snprintf(args, sizeof args, "%s --help=commands", line);
        char *actions = run(args, false) == 0 ? kept() : strdup("");
        for (char *a = actions; *a; a += strcspn(a, "\n") + 1) {
            snprintf(name, sizeof name, "%s %.80s", line, a);
            name[strcspn(name, "\t")] = 0;
            each(name);
        }
        free(actions);
    }
    free(commands);
    ck_assert_int_ge(n, 16);
}

/* The flags in the example are flags of the command. */
static void example_is_accepted(const char *command)
{
    char args[180], flag[64], known[68];
    snprintf(args, sizeof args, "%s --help", command);
    ck_assert_msg(run(args, false) == 0, "%s: %s", args, said());
    char *help = kept();
    const char *example = strstr(help, "\nexample:\n  ");
    ck_assert_msg(example != NULL, "%s: no example", args);
    ck_assert_msg(strstr(example, "sluice ") != NULL, "%s: %s", args, example);
    char begin[180]; /* the help of a command with actions has the example of one of them */
    snprintf(begin, sizeof begin, "sluice %.120s --", command);
    const bool own = strstr(example, begin) != NULL;
    for (const char *at = example; own && (at = strstr(at, " --")); at += 3) {
        snprintf(flag, sizeof flag, "%.*s", (int)strcspn(at + 1, " =\n"), at + 1);
        snprintf(known, sizeof known, "  %s", flag);
        ck_assert_msg(strcmp(flag, "--help") == 0 || strstr(help, known) != NULL, "%s: %s is no flag", args,
                      flag);
    }
    free(help);
}

START_TEST(every_help_has_an_example)
{
    for_all_commands(example_is_accepted);
}
END_TEST

/* A page has its sections, and no line that roff would take for an unknown request. */
static void page_is_roff(const char *command)
{
    char args[180];
    if (strchr(command, ' '))
        return;
    snprintf(args, sizeof args, "%s --help=man", command);
    ck_assert_msg(run(args, false) == 0, "%s: %s", args, said());
    ck_assert_msg(strncmp(output, ".TH sluice-", 11) == 0, "%s: %.40s", args, output);
    ck_assert(strstr(output, ".SH NAME") && strstr(output, ".SH SYNOPSIS") && strstr(output, ".SH EXAMPLE"));
    for (const char *at = output; (at = strstr(at, "\n.")); at++) {
        static const char *const known[] = {".SH ", ".TP\n", ".B ", ".BR ", ".nf\n", ".fi\n", ".BI "};
        bool good = false;
        for (size_t i = 0; i < SL_COUNT(known); i++)
            good |= strncmp(at + 1, known[i], strlen(known[i])) == 0;
        ck_assert_msg(good, "%s: %.30s", args, at + 1);
    }
}

START_TEST(every_command_has_a_page)
{
    for_all_commands(page_is_roff);
    ck_assert_int_eq(run("--help=man", false), 0);
    ck_assert_ptr_nonnull(strstr(output, ".BR sluice-doctor (1)"));
    ck_assert_int_eq(run("plan --help=flags", false), 0);
    ck_assert_ptr_nonnull(strstr(output, "--gpu-bytes\tN\t\t"));
    ck_assert_int_eq(run("generate --help=flags", false), 0);
    ck_assert_ptr_nonnull(strstr(output, "--mode\tMODE\tresident hierarchical"));
}
END_TEST

START_TEST(wrong_words)
{
    fails("pln", 2, "did you mean plan?");
    fails("decoed", 2, "did you mean decode?");
    fails("qqqqqq", 2, "unknown command \"qqqqqq\"\n");
    fails("plan --modle x", 2, "unknown flag --modle; did you mean --model?");
    fails("plan --modle=x", 2, "did you mean --model?");
    fails("plan --zzzzzzzz", 2, "unknown flag --zzzzzzzz\n");
    fails("cache stats --router x", 2, "did you mean stat?");
    fails("bench transprot", 2, "did you mean transport?");
    fails("config --set modle.path=x", 1, "did you mean model.path?");
    fails("config --set modle=x", 1, "did you mean model:?");
}
END_TEST

/* Listens on an unused port; returns the socket. */
static int occupy(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, 1) == 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

START_TEST(ports_in_use)
{
    static const char *const keys[] = {"router.http_port", "router.grpc_port", "cluster.router_port"};
    char args[512];
    int port, fd = occupy(&port);
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        snprintf(args, sizeof args, CHECK "--set %s=%d", keys[i], port);
        ck_assert_msg(run(args, true) == 1, "%s: %s", args, output);
        ck_assert_msg(strstr(output, "in use") != NULL, "%s: %s", args, output);
        snprintf(args, sizeof args, CHECK "--set %s=%d --elsewhere", keys[i], port);
        ck_assert_msg(run(args, true) == 0, "%s: %s", args, output);
    }
    if (port > 1024 && port < 64000) { /* rank 1 answers at metrics.port + 1 */
        snprintf(args, sizeof args, CHECK "--set metrics.port=%d", port - 1);
        fails(args, 1, "metrics.port: port");
    }
    close(fd);
}
END_TEST

START_TEST(what_would_fail_at_the_start)
{
    ck_assert_msg(run(CHECK, true) == 0, "%s", output);
    ck_assert_ptr_nonnull(strstr(output, "ok: facts-dsa"));
    fails(CHECK "--set kvstore.bytes=1MiB", 1, "kvstore.bytes: 1.0 MiB");
    fails(CHECK "--set kvstore.bytes=60TiB", 1, "but this host has");
    fails(CHECK "--set model.path=/nonexistent", 1, "model.path: /nonexistent");
    fails(CHECK "--set router.keys_file=/nonexistent", 1, "/nonexistent");
    fails(CHECK "--set router.tls_cert=/nonexistent --set router.tls_key=/nonexistent", 1, "/nonexistent");
    fails(CHECK "--set router.host=0.0.0.0", 1, "cluster.insecure: [clients]");
    fails(CHECK "--set router.host=no-such-host.invalid", 1, "no-such-host.invalid");
    fails(CHECK "--set cluster.tls=nothing", 1, "nothing");
    fails(CHECK "--set kvstore.share=tenant", 1, "router.keys_file");
    fails(CHECK "--set model.max_context=100000 --set kvstore.bytes=8GiB", 0,
          "note: model.max_context is 100000");
}
END_TEST

/* A checkpoint whose file ends early is called truncated, wherever it ends. */
START_TEST(truncated_checkpoint)
{
    char dir[] = "/tmp/sluice-truncated-XXXXXX", command[512];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(command, sizeof command, "cp models/tiny-v32/* %s 2>/dev/null", dir);
    ck_assert(system(command) >= 0);
    static const long sizes[] = {1 << 20, 65536, 5000, 100, 8, 3, 0};
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        snprintf(command, sizeof command, "truncate -s %ld %s/model.safetensors", sizes[i], dir);
        ck_assert_int_eq(system(command), 0);
        snprintf(command, sizeof command, CHECK "--set model.path=%s", dir);
        fails(command, 1, "model.safetensors: truncated");
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(doctor_of_this_host)
{
    ck_assert_int_le(run("doctor --json --config configs/one-host.yaml --set kvstore.bytes=60TiB", false), 1);
    ck_assert_ptr_nonnull(strstr(output, "\"topic\": \"transport\""));
    ck_assert_ptr_nonnull(strstr(output, "kvstore.bytes is 61440.0 GiB"));
    fails("doctor --config /nonexistent", 1, "/nonexistent");
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("first_minutes");
    TCase *c = tcase_create("first_minutes");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, every_help_has_an_example);
    tcase_add_test(c, every_command_has_a_page);
    tcase_add_test(c, wrong_words);
    tcase_add_test(c, ports_in_use);
    tcase_add_test(c, what_would_fail_at_the_start);
    tcase_add_test(c, truncated_checkpoint);
    tcase_add_test(c, doctor_of_this_host);
    suite_add_tcase(s, c);
    return program_main(argc, argv, s);
}
