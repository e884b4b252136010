/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <math.h>

static struct bl_jv fail_operands(struct bl_jinja_run *r, enum bl_jtok op, struct bl_jv a,
                                  struct bl_jv b)
{
    if (op == BL_JT_ADD && (a.kind == BL_J_STRING || a.kind == BL_J_LIST || a.kind == BL_J_TUPLE)) {
        bool quoted = a.kind == BL_J_STRING;
        return bl_jrun_fail(r, BL_EINVAL, "can only concatenate %s (not \"%s\") to %s",
                            bl_jv_type(a), bl_jv_type(b), quoted ? "str" : bl_jv_type(a));
    }
    return bl_jrun_fail(r, BL_EINVAL, "unsupported operand type(s) for %s: '%s' and '%s'",
                        op == BL_JT_POW ? "** or pow()" : bl_jtok_text(op), bl_jv_type(a),
                        bl_jv_type(b));
}

static struct bl_jv fail_overflow(struct bl_jinja_run *r)
{
    return bl_jrun_fail(r, BL_ELIMIT, "an integer does not fit 64 bits");
}

/* ---- integers -------------------------------------------------------------------------------- */

static bool add_fits(int64_t a, int64_t b)
{
    return b >= 0 ? a <= INT64_MAX - b : a >= INT64_MIN - b;
}

static bool multiply(int64_t a, int64_t b, int64_t *out)
{
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b,
             p;
    bool negative = (a < 0) != (b < 0);
    if (!bl_size_mul(x, y, &p) || p > (uint64_t)INT64_MAX + negative)
        return false;
    *out = negative ? (int64_t)(0 - p) : (int64_t)p;
    return true;
}

/* Rounds to minus infinity, as Python does. */
static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static struct bl_jv int_power(struct bl_jinja_run *r, int64_t base, int64_t exponent)
{
    int64_t v = 1;
    if (exponent < 0) {
        if (!base)
            return bl_jrun_fail(r, BL_EINVAL, "0.0 cannot be raised to a negative power");
        return bl_jv_float(pow((double)base, (double)exponent));
    }
    if (base == 0 || base == 1 || base == -1)
        return bl_jv_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
    for (; exponent; exponent--) /* overflows within 63 rounds */
        if (!multiply(v, base, &v))
            return fail_overflow(r);
    return bl_jv_int(v);
}

static struct bl_jv int_op(struct bl_jinja_run *r, enum bl_jtok op, int64_t a, int64_t b)
{
    int64_t v;
    if (op == BL_JT_POW)
        return int_power(r, a, b);
    if (op == BL_JT_ADD)
        return add_fits(a, b) ? bl_jv_int(a + b) : fail_overflow(r);
    if (op == BL_JT_SUB)
        return b != INT64_MIN && add_fits(a, -b) ? bl_jv_int(a - b) : fail_overflow(r);
    if (op == BL_JT_MUL)
        return multiply(a, b, &v) ? bl_jv_int(v) : fail_overflow(r);
    if (!b)
        return bl_jrun_fail(r, BL_EINVAL,
                            op == BL_JT_DIV ? "division by zero"
                                            : "integer division or modulo by zero");
    if (op == BL_JT_DIV)
        return bl_jv_float((double)a / (double)b);
    if (b == -1) /* the quotient of the smallest integer would not fit */
        return op == BL_JT_MOD ? bl_jv_int(0) : int_op(r, BL_JT_SUB, 0, a);
    return bl_jv_int(op == BL_JT_MOD ? a - floor_divide(a, b) * b : floor_divide(a, b));
}

/* ---- floats ---------------------------------------------------------------------------------- */

static struct bl_jv float_power(struct bl_jinja_run *r, double a, double b)
{
    if (a == 0 && b < 0)
        return bl_jrun_fail(r, BL_EINVAL, "0.0 cannot be raised to a negative power");
    double v = pow(a, b);
    if (isnan(v) && !isnan(a) && !isnan(b))
        return bl_jrun_fail(r, BL_EUNSUPPORTED, "complex numbers are not supported");
    return bl_jv_float(v);
}

/* The remainder takes the sign of the divisor. */
static double float_modulo(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static struct bl_jv float_op(struct bl_jinja_run *r, enum bl_jtok op, double a, double b)
{
    switch (op) {
    case BL_JT_ADD:
        return bl_jv_float(a + b);
    case BL_JT_SUB:
        return bl_jv_float(a - b);
    case BL_JT_MUL:
        return bl_jv_float(a * b);
    case BL_JT_POW:
        return float_power(r, a, b);
    default:
        break;
    }
    if (b == 0)
        return bl_jrun_fail(r, BL_EINVAL,
                            op == BL_JT_DIV   ? "float division by zero"
                            : op == BL_JT_MOD ? "float modulo"
                                              : "float floor division by zero");
    if (op == BL_JT_DIV)
        return bl_jv_float(a / b);
    double m = float_modulo(a, b);
    return bl_jv_float(op == BL_JT_MOD ? m : round((a - m) / b));
}

/* ---- sequences ------------------------------------------------------------------------------- */

static struct bl_jv join_lists(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    struct bl_jlist *l = bl_jlist_new(r, (uint64_t)a.list->n + b.list->n);
    for (uint32_t i = 0; i < a.list->n && !r->status; i++)
        bl_jlist_push(r, l, a.list->item[i]);
    for (uint32_t i = 0; i < b.list->n && !r->status; i++)
        bl_jlist_push(r, l, b.list->item[i]);
    return bl_jlist_value(a.kind, l);
}

static struct bl_jv repeat(struct bl_jinja_run *r, struct bl_jv v, int64_t times)
{
    if (v.kind == BL_J_STRING) {
        struct bl_jbuf *b = bl_jbuf_new(r, 0);
        bl_jbuf_fill(r, b, v, times);
        return bl_jbuf_string(b);
    }
    uint64_t n = 0;
    if (times > 0 && !bl_size_mul((uint64_t)times, v.list->n, &n))
        n = UINT64_MAX;
    struct bl_jlist *l = bl_jlist_new(r, n);
    for (uint64_t i = 0; i < n && !r->status; i++)
        bl_jlist_push(r, l, v.list->item[i % v.list->n]);
    return bl_jlist_value(v.kind, l);
}

static bool is_repeatable(struct bl_jv v)
{
    return v.kind == BL_J_STRING || v.kind == BL_J_LIST || v.kind == BL_J_TUPLE;
}

static struct bl_jv multiply_values(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    int64_t times;
    if (is_repeatable(a) && bl_jv_as_int(b, &times))
        return repeat(r, a, times);
    if (is_repeatable(b) && bl_jv_as_int(a, &times))
        return repeat(r, b, times);
    if (is_repeatable(a) || is_repeatable(b))
        return bl_jrun_fail(r, BL_EINVAL, "can't multiply sequence by non-int of type '%s'",
                            bl_jv_type(is_repeatable(a) ? b : a));
    return fail_operands(r, BL_JT_MUL, a, b);
}

static struct bl_jv add_strings(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    if (a.markup == b.markup)
        return bl_jv_concat(r, a, b);
    struct bl_jv v = bl_jv_concat(r, bl_jstr_escape(r, a), bl_jstr_escape(r, b));
    v.markup = true;
    return v;
}

/* ---- all of them ----------------------------------------------------------------------------- */

struct bl_jv bl_jop_binary(struct bl_jinja_run *r, enum bl_jtok op, struct bl_jv a, struct bl_jv b)
{
    int64_t i, j;
    if (r->status)
        return bl_jv_undefined(NULL);
    if (op == BL_JT_ADD && a.kind == BL_J_STRING && b.kind == BL_J_STRING)
        return add_strings(r, a, b);
    if (bl_jv_as_int(a, &i) && bl_jv_as_int(b, &j))
        return int_op(r, op, i, j);
    if (bl_jv_is_number(a) && bl_jv_is_number(b))
        return float_op(r, op, bl_jv_as_double(a), bl_jv_as_double(b));
    if (op == BL_JT_MOD && a.kind == BL_J_STRING)
        return bl_jformat_percent(r, a, b);
    if (a.kind == BL_J_UNDEFINED || b.kind == BL_J_UNDEFINED)
        return bl_jrun_fail_undefined(r, a.kind == BL_J_UNDEFINED ? a : b);
    if (op == BL_JT_ADD && a.kind == b.kind && (a.kind == BL_J_LIST || a.kind == BL_J_TUPLE))
        return join_lists(r, a, b);
    return op == BL_JT_MUL ? multiply_values(r, a, b) : fail_operands(r, op, a, b);
}

static struct bl_jv fail_sign(struct bl_jinja_run *r, char sign, struct bl_jv v)
{
    if (v.kind == BL_J_UNDEFINED)
        return bl_jrun_fail_undefined(r, v);
    return bl_jrun_fail(r, BL_EINVAL, "bad operand type for unary %c: '%s'", sign, bl_jv_type(v));
}

struct bl_jv bl_jop_negate(struct bl_jinja_run *r, struct bl_jv v)
{
    int64_t i;
    if (bl_jv_as_int(v, &i))
        return int_op(r, BL_JT_SUB, 0, i);
    return v.kind == BL_J_FLOAT ? bl_jv_float(-v.f) : fail_sign(r, '-', v);
}

struct bl_jv bl_jop_plus(struct bl_jinja_run *r, struct bl_jv v)
{
    int64_t i;
    if (bl_jv_as_int(v, &i))
        return bl_jv_int(i);
    return v.kind == BL_J_FLOAT ? v : fail_sign(r, '+', v);
}

bool bl_jop_compare(struct bl_jinja_run *r, enum bl_jtok op, struct bl_jv a, struct bl_jv b)
{
    if (r->status)
        return false;
    switch (op) {
    case BL_JT_EQ:
        return bl_jv_equal(r, a, b);
    case BL_JT_NE:
        return !bl_jv_equal(r, a, b);
    case BL_JT_IN:
        return bl_jv_contains(r, b, a);
    case BL_JT_NOT_IN:
        return !bl_jv_contains(r, b, a);
    default:
        break;
    }
    int c = bl_jv_order(r, a, b, bl_jtok_text(op));
    if (c == BL_J_UNORDERED)
        return false;
    return op == BL_JT_LT ? c < 0 : op == BL_JT_LE ? c <= 0 : op == BL_JT_GT ? c > 0 : c >= 0;
}
