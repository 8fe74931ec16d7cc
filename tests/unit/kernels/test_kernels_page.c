/* docs/kernels.md is the table of ops and of their paths. SL_UPDATE_REFERENCE=1 writes it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "kernels/backend.h"
#include "kernels/paths.h"
#include "tests/unit/run_suite.h"

#define PAGE "docs/kernels.md"

static const char intro[] =
    "# Ops and their kernels\n"
    "\n"
    "Written by `SL_UPDATE_REFERENCE=1 build/release/tests/unit/kernels/test_kernels_page` from `kernels/ops.h` and\n"
    "`kernels/paths.c`.\n"
    "\n"
    "The CPU backend has one implementation of every op, which is its specification. On CUDA several ops have a kernel for\n"
    "frequent shapes and a plain one for everything else. Which one runs follows from types and shapes alone. Paths with the\n"
    "same letter add in the same order, so a token has the same bits on each of them; only among such paths may the number of\n"
    "tokens decide. Products, experts, attention and scores of the official index keys are fast on compute capability 9.0\n"
    "only; on other GPUs the log says so at start, and these ops run on the library or on plain kernels, with other bits. When\n"
    "an op takes a plain path for the first time, the log names it (`plain-kernel`).\n"
    "`sluice inspect --kernels --model DIR` lists the path of every weight and op of a checkpoint.\n"
    "\n"
    "## Ops\n"
    "\n"
    "| op | what it computes |\n"
    "|---|---|\n";

static char *page(void)
{
    sl_strbuf sb = {0};

    sl_sb_str(&sb, intro);
    for (int op = 0; op < SL_OP_COUNT; op++)
        sl_sb_printf(&sb, "| `%s` | %s |\n", sl_op_name((sl_op)op), sl_op_text((sl_op)op));
    sl_sb_str(&sb, "\n## Paths on CUDA\n\n| op | path | bits | for |\n|---|---|---|---|\n");
    for (int op = 0; op < SL_OP_COUNT; op++) {
        int n;
        const sl_path *v = sl_op_paths((sl_op)op, &n);
        for (int i = 0; i < n; i++)
            sl_sb_printf(&sb, "| %s%s%s | %s | %c | %s |\n", i ? "" : "`", i ? "" : sl_op_name((sl_op)op),
                         i ? "" : "`", v[i].name, 'A' + v[i].order, v[i].shapes);
    }
    return sl_sb_take(&sb);
}

START_TEST(is_up_to_date)
{
    char *want = page(), *have = NULL;
    const char *update = getenv("SL_UPDATE_REFERENCE");
    size_t n = 0;
    FILE *f;

    ck_assert_ptr_nonnull(want);
    if (update) {
        f = fopen(PAGE, "w");
        ck_assert_ptr_nonnull(f);
        ck_assert(fputs(want, f) >= 0 && fclose(f) == 0);
    }
    f = fopen(PAGE, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert(getdelim(&have, &n, '\0', f) > 0);
    fclose(f);
    ck_assert_msg(strcmp(want, have) == 0,
                  PAGE " is not what the tables say: SL_UPDATE_REFERENCE=1 writes it");
    free(have);
    free(want);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels page");
    TCase *t = tcase_create("page");

    tcase_add_test(t, is_up_to_date);
    suite_add_tcase(s, t);
    return run_suite(s);
}
