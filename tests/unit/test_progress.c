/* SPDX-License-Identifier: MIT */
/* Lines and the progress bar on one screen: a line takes the bar's place, the bar comes again. */
#include "support.h"

#include <unistd.h>

#include "common/progress.h"

static FILE *screen;
static int kept;

/* Standard error goes to a file. */
static void begin_screen(void)
{
    screen = tmpfile();
    assert_non_null(screen);
    fflush(stderr);
    kept = dup(STDERR_FILENO);
    assert_true(kept >= 0);
    assert_true(dup2(fileno(screen), STDERR_FILENO) >= 0);
}

static void end_screen(char *text, size_t cap)
{
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(screen);
    text[fread(text, 1, cap - 1, screen)] = 0;
    fclose(screen);
}

static const struct bl_report report = {.verb = "run"};
static const struct bl_progress half = {50, 100, 1000000000}, most = {90, 100, 2000000000};

static void test_line_over_bar(void **state)
{
    struct bl_progress_view v;
    char text[1000];
    (void)state;

    begin_screen();
    bl_progress_begin(&v, &report, BL_PROGRESS_BAR);
    bl_progress_log(&v, BL_LOG_WARN, "before");
    bl_progress_update(&v, &half);
    bl_progress_log(&v, BL_LOG_WARN, "between");
    bl_progress_log(&v, BL_LOG_INFO, "again");
    bl_progress_update(&v, &most);
    bl_progress_end(&v, true);
    end_screen(text, sizeof text);

    assert_memory_equal(text, "warning: before\n\rLoading  50% [", 30);
    assert_non_null(strstr(text, "\033[K\r\033[Kwarning: between\ninfo: again\n\rLoading  90% ["));
    assert_non_null(strstr(text, "\033[K\r\033[Kloaded 90 B in 2.00 s"));
}

static void test_failed(void **state)
{
    struct bl_progress_view v;
    char text[1000];
    (void)state;

    begin_screen();
    bl_progress_begin(&v, &report, BL_PROGRESS_BAR);
    bl_progress_update(&v, &half);
    bl_progress_end(&v, false);
    end_screen(text, sizeof text);
    assert_string_equal(text + strlen(text) - 7, "\033[K\r\033[K");
}

static void test_json(void **state)
{
    static const struct bl_report json = {.verb = "run", .json = true};
    struct bl_progress_view v;
    char text[1000];
    (void)state;

    begin_screen();
    bl_progress_begin(&v, &json, BL_PROGRESS_JSON);
    bl_progress_update(&v, &half);
    bl_progress_log(&v, BL_LOG_WARN, "w");
    bl_progress_end(&v, true);
    end_screen(text, sizeof text);
    assert_null(strchr(text, '\r'));
    assert_non_null(
        strstr(text, "\n{\"event\":\"note\",\"message\":\"warning: w\"}\n{\"event\":\"loaded\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_over_bar),
        cmocka_unit_test(test_failed),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
