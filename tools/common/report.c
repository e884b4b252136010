/* SPDX-License-Identifier: MIT */
#include "report.h"

#include "io.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bl_exit_code(enum bl_stage stage, enum bl_status status)
{
    switch (status) {
    case BL_OK:
        return BL_EXIT_OK;
    case BL_ENOFIT:
        return BL_EXIT_NOFIT;
    case BL_EDEVICE:
    case BL_ETIMEDOUT:
        return BL_EXIT_DEVICE;
    case BL_EIO:
    case BL_EFORMAT:
    case BL_EUNSUPPORTED:
        return stage == BL_STAGE_OPEN ? BL_EXIT_MODEL : BL_EXIT_FAILURE;
    case BL_EINVAL: /* an option's value that only the library can judge, such as a KV type's name
                     */
        return stage == BL_STAGE_OPEN ? BL_EXIT_USAGE : BL_EXIT_FAILURE;
    case BL_ENOMEM: /* while opening: what the plan cannot see, such as a limit on address space */
        return stage == BL_STAGE_OPEN ? BL_EXIT_NOFIT : BL_EXIT_FAILURE;
    default:
        return BL_EXIT_FAILURE;
    }
}

/* Bytes of the UTF-8 sequence at s, 0 when malformed: overlong forms, surrogates and cut ones count
 * as such. */
static size_t utf8_bytes(const unsigned char *s, size_t n)
{
    static const struct {
        unsigned char lead, mask;
        uint32_t least;
    } form[] = {{0x00, 0x80, 0}, {0xc0, 0xe0, 0x80}, {0xe0, 0xf0, 0x800}, {0xf0, 0xf8, 0x10000}};

    for (size_t k = 0; k < sizeof form / sizeof form[0]; k++) {
        if ((s[0] & form[k].mask) != form[k].lead)
            continue;
        uint32_t code = s[0] & (unsigned char)~form[k].mask;
        if (k >= n)
            return 0;
        for (size_t i = 1; i <= k; i++) {
            if ((s[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (s[i] & 0x3f);
        }
        bool valid = code >= form[k].least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        return valid ? k + 1 : 0;
    }
    return 0;
}

static bool is_control(const unsigned char *s, size_t n)
{
    return s[0] < 0x20 || s[0] == 0x7f || (n == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

void bl_clean_text(char *dst, size_t cap, const char *src, size_t n, bool one_line)
{
    const unsigned char *s = (const unsigned char *)src;
    size_t used = 0;

    for (size_t i = 0; i < n;) {
        size_t len = utf8_bytes(s + i, n - i);
        const char *piece = src + i;
        size_t piece_len = len;
        if (!len || !s[i]) {
            len = 1;
            piece = "\xef\xbf\xbd";
            piece_len = 3;
        } else if (one_line && is_control(s + i, len)) {
            piece = "?";
            piece_len = 1;
        }
        if (used + piece_len + 1 > cap)
            break;
        memcpy(dst + used, piece, piece_len);
        used += piece_len;
        i += len;
    }
    dst[used] = 0;
}

static void print_json(const char *event, const char *message)
{
    cJSON *o = cJSON_CreateObject();
    char *text = NULL;

    if (cJSON_AddStringToObject(o, "event", event) &&
        cJSON_AddStringToObject(o, "message", message))
        text = cJSON_PrintUnformatted(o);
    fprintf(stderr, "%s\n", text ? text : "{\"event\":\"error\",\"message\":\"out of memory\"}");
    cJSON_free(text);
    cJSON_Delete(o);
}

static void print_line(const struct bl_report *r, const char *event, const char *prefix,
                       const char *fmt, va_list ap)
{
    char raw[1024], clean[3 * sizeof raw];

    vsnprintf(raw, sizeof raw, fmt, ap);
    bl_clean_text(clean, sizeof clean, raw, strlen(raw), true);
    if (r->json)
        print_json(event, clean);
    else
        fprintf(stderr, "%s%s\n", prefix, clean);
}

void bl_report_error(const struct bl_report *r, const char *fmt, ...)
{
    char prefix[64];
    va_list ap;

    snprintf(prefix, sizeof prefix, "ballast%s%s: ", r->verb ? " " : "", r->verb ? r->verb : "");
    va_start(ap, fmt);
    print_line(r, "error", prefix, fmt, ap);
    va_end(ap);
}

void bl_report_note(const struct bl_report *r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    print_line(r, "note", "", fmt, ap);
    va_end(ap);
}

int bl_report_status(const struct bl_report *r, enum bl_stage stage, enum bl_status status)
{
    const char *text = bl_error();

    if (status == BL_ECANCELLED && bl_interrupt_code())
        return bl_interrupt_code();
    bl_report_error(r, "%s", text[0] ? text : bl_status_name(status));
    return bl_exit_code(stage, status);
}

void bl_report_level(const struct bl_report *r, enum bl_log_level level, const char *line)
{
    static const char *const name[] = {"error", "warning", "info", "debug"};

    bl_report_note(r, "%s: %s", name[level], line);
}

void bl_report_log(void *report, enum bl_log_level level, const char *line)
{
    bl_report_level(report, level, line);
}

void bl_format_bytes(char text[24], double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    size_t u = 0;

    while (bytes >= 999.95 && u + 1 < sizeof unit / sizeof unit[0]) {
        bytes /= 1000;
        u++;
    }
    snprintf(text, 24, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}
