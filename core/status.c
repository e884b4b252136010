/* SPDX-License-Identifier: MIT */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 512 };
static _Thread_local char message[MESSAGE_BYTES];

enum bl_status bl_fail(enum bl_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return code;
}

enum bl_status bl_fail_in(enum bl_status code, const char *fmt, ...)
{
    char old[MESSAGE_BYTES];
    va_list ap;

    memcpy(old, message, sizeof old);
    va_start(ap, fmt);
    int n = vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof message - 3 ? (size_t)n : sizeof message - 3;
    size_t room = sizeof message - at - 3;
    size_t kept = strnlen(old, room);
    memcpy(message + at, ": ", 2);
    memcpy(message + at + 2, old, kept);
    message[at + 2 + kept] = 0;
    return code;
}

const char *bl_error(void)
{
    return message;
}

const char *bl_size_text(uint64_t bytes, char text[BL_SIZE_TEXT])
{
    const double b = (double)bytes;

    if (b >= 100 * 0x1p20)
        snprintf(text, BL_SIZE_TEXT, "%.2f GiB", b / 0x1p30);
    else if (!bytes || b >= 0x1p20)
        snprintf(text, BL_SIZE_TEXT, bytes ? "%.1f MiB" : "%.0f MiB", b / 0x1p20);
    else if (b >= 0x1p10)
        snprintf(text, BL_SIZE_TEXT, "%.1f KiB", b / 0x1p10);
    else
        snprintf(text, BL_SIZE_TEXT, "%u bytes", (unsigned)bytes);
    return text;
}

const char *bl_status_name(enum bl_status code)
{
    switch (code) {
    case BL_OK:
        return "ok";
    case BL_EINVAL:
        return "invalid argument";
    case BL_ENOMEM:
        return "out of memory";
    case BL_EIO:
        return "input/output error";
    case BL_EFORMAT:
        return "bad file";
    case BL_EUNSUPPORTED:
        return "not supported";
    case BL_EUNAVAILABLE:
        return "not available here";
    case BL_EDEVICE:
        return "device failure";
    case BL_ELIMIT:
        return "over a limit";
    case BL_ECANCELLED:
        return "cancelled";
    case BL_ETIMEDOUT:
        return "timed out";
    case BL_ENOFIT:
        return "does not fit";
    }
    return "unknown status";
}
