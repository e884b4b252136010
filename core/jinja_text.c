/* SPDX-License-Identifier: MIT */
#include "jinja_text.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"

static bool continues(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

size_t bl_jtext_next(const char *s, size_t n_bytes)
{
    size_t n = 1;
    while (n < n_bytes && continues(s[n]))
        n++;
    return n;
}

size_t bl_jtext_last(const char *s, size_t n_bytes)
{
    size_t at = n_bytes - 1;
    while (at && continues(s[at]))
        at--;
    return n_bytes - at;
}

size_t bl_jtext_count(const char *s, size_t n_bytes)
{
    size_t n = n_bytes && continues(s[0]);
    for (size_t i = 0; i < n_bytes; i++)
        n += !continues(s[i]);
    return n;
}

uint32_t bl_jtext_decode(const char *s, size_t n_bytes)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t lead = (unsigned char)s[0];
    size_t n = bl_jtext_next(s, n_bytes);
    if (n == 1 && lead < 0x80)
        return lead;
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (n != want || lead < 0xC2 || lead > 0xF4)
        return 0xFFFD;
    uint32_t cp = lead & (0x7Fu >> want);
    for (size_t i = 1; i < n; i++)
        cp = cp << 6 | ((unsigned char)s[i] & 0x3F);
    return cp < least[n] || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000) ? 0xFFFD : cp;
}

size_t bl_jtext_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        cp = 0xFFFD;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(cp | (0xF00u >> n));
    return n;
}

size_t bl_jtext_rstrip(const char *s, size_t n_bytes)
{
    while (n_bytes) {
        size_t last = bl_jtext_last(s, n_bytes);
        if (!bl_jtext_is_space(bl_jtext_decode(s + n_bytes - last, last)))
            break;
        n_bytes -= last;
    }
    return n_bytes;
}

size_t bl_jtext_lstrip(const char *s, size_t n_bytes)
{
    size_t at = 0;
    while (at < n_bytes && bl_jtext_is_space(bl_jtext_decode(s + at, n_bytes - at)))
        at += bl_jtext_next(s + at, n_bytes - at);
    return at;
}

/* ---- classes and case ----------------------------------------------------------------------- */

struct range {
    uint32_t first, last;
};

static bool in_ranges(uint32_t cp, const struct range *r, size_t n)
{
    for (size_t i = 0; i < n && cp >= r[i].first; i++)
        if (cp <= r[i].last)
            return true;
    return false;
}

bool bl_jtext_is_space(uint32_t cp)
{
    static const struct range spaces[] = {
        {0x09, 0x0D},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    return in_ranges(cp, spaces, BL_COUNT(spaces));
}

/* Control, format, separator, surrogate and private-use characters. */
bool bl_jtext_is_printable(uint32_t cp)
{
    static const struct range hidden[] = {
        {0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
        {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
        {0x8E2, 0x8E2},     {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F},
        {0x2028, 0x202F},   {0x205F, 0x2064},   {0x2066, 0x206F},   {0x3000, 0x3000},
        {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},   {0x110BD, 0x110BD},
        {0x110CD, 0x110CD}, {0x13430, 0x13438}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
        {0xE0001, 0xE0001}, {0xE0020, 0xE007F}, {0xF0000, 0xFFFFD}, {0x100000, 0x10FFFD}};
    return !in_ranges(cp, hidden, BL_COUNT(hidden));
}

bool bl_jtext_is_alpha(uint32_t cp)
{
    static const struct range other[] = {
        {0x80, 0xA9},     {0xAB, 0xB4},     {0xB6, 0xB9},     {0xBB, 0xBF},      {0xD7, 0xD7},
        {0xF7, 0xF7},     {0x2000, 0x206F}, {0x20A0, 0x20CF}, {0x2190, 0x2BFF},  {0x3000, 0x3004},
        {0x3007, 0x3030}, {0xFE30, 0xFE6F}, {0xFF00, 0xFF20}, {0x1F000, 0x1FAFF}};
    if (cp < 0x80)
        return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    return bl_jtext_is_printable(cp) && !in_ranges(cp, other, BL_COUNT(other));
}

/* Small letters, and how far away the capitals are. */
static const struct {
    uint32_t first, last, stride;
    int32_t delta;
} letters[] = {
    {'a', 'z', 1, -32},       {0xE0, 0xF6, 1, -32},      {0xF8, 0xFE, 1, -32},
    {0xFF, 0xFF, 1, 121},     {0x101, 0x12F, 2, -1},     {0x133, 0x137, 2, -1},
    {0x13A, 0x148, 2, -1},    {0x14B, 0x177, 2, -1},     {0x17A, 0x17E, 2, -1},
    {0x183, 0x185, 2, -1},    {0x188, 0x188, 1, -1},     {0x192, 0x192, 1, -1},
    {0x1A1, 0x1A5, 2, -1},    {0x1B0, 0x1B0, 1, -1},     {0x1B4, 0x1B6, 2, -1},
    {0x1CE, 0x1DC, 2, -1},    {0x1DD, 0x1DD, 1, -79},    {0x1DF, 0x1EF, 2, -1},
    {0x1F5, 0x1F5, 1, -1},    {0x1F9, 0x21F, 2, -1},     {0x223, 0x233, 2, -1},
    {0x253, 0x253, 1, -210},  {0x254, 0x254, 1, -206},   {0x256, 0x257, 1, -205},
    {0x259, 0x259, 1, -202},  {0x25B, 0x25B, 1, -203},   {0x371, 0x373, 2, -1},
    {0x3AC, 0x3AC, 1, -38},   {0x3AD, 0x3AF, 1, -37},    {0x3B1, 0x3C1, 1, -32},
    {0x3C3, 0x3CB, 1, -32},   {0x3CC, 0x3CC, 1, -64},    {0x3CD, 0x3CE, 1, -63},
    {0x430, 0x44F, 1, -32},   {0x450, 0x45F, 1, -80},    {0x461, 0x481, 2, -1},
    {0x48B, 0x4BF, 2, -1},    {0x4C2, 0x4CE, 2, -1},     {0x4D1, 0x52F, 2, -1},
    {0x561, 0x586, 1, -48},   {0x10D0, 0x10FA, 1, 3008}, {0x10FD, 0x10FF, 1, 3008},
    {0x1E01, 0x1E95, 2, -1},  {0x1EA1, 0x1EFF, 2, -1},   {0x2170, 0x217F, 1, -16},
    {0x24D0, 0x24E9, 1, -26}, {0xFF41, 0xFF5A, 1, -32},
};

uint32_t bl_jtext_upper(uint32_t cp)
{
    for (size_t i = 0; i < BL_COUNT(letters) && cp >= letters[i].first; i++)
        if (cp <= letters[i].last && (cp - letters[i].first) % letters[i].stride == 0)
            return (uint32_t)((int32_t)cp + letters[i].delta);
    return cp == 0x3C2 ? 0x3A3 : cp; /* the final sigma has no capital of its own */
}

uint32_t bl_jtext_lower(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    for (size_t i = 1; i < BL_COUNT(letters); i++) {
        uint32_t small = (uint32_t)((int32_t)cp - letters[i].delta);
        if (small >= letters[i].first && small <= letters[i].last &&
            (small - letters[i].first) % letters[i].stride == 0)
            return small;
    }
    return cp;
}

/* ---- doubles --------------------------------------------------------------------------------- */

/* The digits of the shortest decimal that reads back as v, without trailing zeros; its exponent.
 * What 15 digits can name is named shortest by them less their zeros, so three tries do; denormals
 * may need fewer digits. */
static int shortest(double v, char digits[20])
{
    char text[32];
    for (int precision = v < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, v);
        if (strtod(text, NULL) == v)
            break;
    }
    const char *e = strchr(text, 'e');
    size_t n = 0;
    for (const char *p = text; p < e && n < 19; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    return e ? (int)strtol(e + 1, NULL, 10) : 0;
}

size_t bl_jtext_double(double v, char out[32])
{
    if (isnan(v))
        return (size_t)snprintf(out, 32, "nan");
    const char *sign = signbit(v) ? "-" : "";
    v = fabs(v);
    if (isinf(v))
        return (size_t)snprintf(out, 32, "%sinf", sign);
    char digits[20];
    int exponent = shortest(v, digits), n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16)
        return (size_t)snprintf(out, 32, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "",
                                digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0)
        return (size_t)snprintf(out, 32, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    int whole = exponent + 1;
    if (n > whole)
        return (size_t)snprintf(out, 32, "%s%.*s.%s", sign, whole, digits, digits + whole);
    return (size_t)snprintf(out, 32, "%s%s%.*s.0", sign, digits, whole - n, "0000000000000000");
}
