/* See program.h. */
#include "tests/unit/cli/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

static const char *program;
char output[1 << 20];
/* file with the stderr of the last run whose stderr is not in output */
static char errors[] = "/tmp/sl-test-cli-XXXXXX";

int run(const char *args, bool with_stderr)
{
    char cmd[4096];
    snprintf(cmd, sizeof cmd, "%s %s %s%s", program, args, with_stderr ? "2>&1" : "2>",
             with_stderr ? "" : errors);
    FILE *p = popen(cmd, "r");
    ck_assert_ptr_nonnull(p);
    size_t n = fread(output, 1, sizeof output - 1, p);
    output[n] = 0;
    int status = pclose(p);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

const char *said(void)
{
    static char text[2048];
    FILE *f = fopen(errors, "r");
    size_t n = 0;
    if (f && fseek(f, -(long)sizeof text + 1, SEEK_END) != 0)
        rewind(f);
    if (f) {
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[n] = 0;
    return text;
}

void fails(const char *args, int status, const char *word)
{
    ck_assert_msg(run(args, true) == status, "%s: %s", args, output);
    ck_assert_msg(strstr(output, word) != NULL, "%s: \"%s\" does not say %s", args, output, word);
}

int program_main(int argc, char **argv, Suite *suite)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s PROGRAM\n", argv[0]);
        return EXIT_FAILURE;
    }
    program = argv[1];
    int fd = mkstemp(errors);
    if (fd < 0) {
        perror(errors);
        return EXIT_FAILURE;
    }
    close(fd);
    int result = run_suite(suite);
    unlink(errors);
    return result;
}
