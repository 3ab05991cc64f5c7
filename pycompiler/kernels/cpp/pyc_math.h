// Elementary functions for float and double, without calls and branches, so that a loop over them vectorises.  (The
// last sections call libm, one element at a time.)  tests/kernels/test_math.py asserts their errors in ulp against
// float64.  Coefficients are minimax fits (float) and Taylor series (double).  Edge cases are torch's, with one
// exception: exp and sigmoid return 0 for a denormal result, as ATen's vectorised exp does.  Denormals would slow down
// later operators many times.
#pragma once

extern "C" { double fmod(double, double); float fmodf(float, float); }

// The only contraction: generated code is compiled with -ffp-contract=off.  A processor without the instruction rounds
// twice.
#if defined(__FMA__) || defined(__aarch64__)
PYC_INLINE float pyc_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PYC_INLINE double pyc_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
PYC_INLINE float pyc_fma(float a, float b, float c) { return a * b + c; }
PYC_INLINE double pyc_fma(double a, double b, double c) { return a * b + c; }
#endif
PYC_INLINE float pyc_abs(float a) { return __builtin_fabsf(a); }
PYC_INLINE double pyc_abs(double a) { return __builtin_fabs(a); }
template <class T> PYC_INLINE T pyc_abs(T a) { return (T)-1 < 0 && a < 0 ? (T)(0 - (uint64_t)a) : a; }
PYC_INLINE float pyc_sqrt(float a) { return __builtin_sqrtf(a); }
PYC_INLINE double pyc_sqrt(double a) { return __builtin_sqrt(a); }
PYC_INLINE float pyc_rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
PYC_INLINE double pyc_rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }
PYC_INLINE float pyc_floor(float a) { return __builtin_floorf(a); }
PYC_INLINE double pyc_floor(double a) { return __builtin_floor(a); }
PYC_INLINE float pyc_ceil(float a) { return __builtin_ceilf(a); }
PYC_INLINE double pyc_ceil(double a) { return __builtin_ceil(a); }
PYC_INLINE float pyc_trunc(float a) { return __builtin_truncf(a); }
PYC_INLINE double pyc_trunc(double a) { return __builtin_trunc(a); }
PYC_INLINE float pyc_round(float a) { return __builtin_rintf(a); }  // ties to even, as torch.round
PYC_INLINE double pyc_round(double a) { return __builtin_rint(a); }
PYC_INLINE float pyc_copysign(float a, float b) { return __builtin_copysignf(a, b); }
PYC_INLINE double pyc_copysign(double a, double b) { return __builtin_copysign(a, b); }
template <class T> PYC_INLINE bool pyc_isnan(T a) { return a != a; }
PYC_INLINE bool pyc_isinf(float a) { return __builtin_fabsf(a) == __builtin_inff(); }
PYC_INLINE bool pyc_isinf(double a) { return __builtin_fabs(a) == __builtin_inf(); }
template <class T> PYC_INLINE bool pyc_isinf(T) { return false; }
// gcc merges a negation and an fma, which changes the sign of zeros.  So the sign bit is flipped.
PYC_INLINE float pyc_neg(float a) { return pyc_bits<float>(pyc_bits<uint32_t>(a) ^ 0x80000000u); }
PYC_INLINE double pyc_neg(double a) { return pyc_bits<double>(pyc_bits<uint64_t>(a) ^ 0x8000000000000000u); }
PYC_INLINE bool pyc_signbit(float a) { return (int32_t)pyc_bits<uint32_t>(a) < 0; }
PYC_INLINE bool pyc_signbit(double a) { return (int64_t)pyc_bits<uint64_t>(a) < 0; }
template <class T> PYC_INLINE bool pyc_signbit(T a) { return (T)-1 < 0 && a < 0; }
PYC_INLINE float pyc_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : 0.0f; }
PYC_INLINE double pyc_sign(double a) { return a > 0.0 ? 1.0 : a < 0.0 ? -1.0 : 0.0; }
template <class T> PYC_INLINE T pyc_sign(T a) { return (T)((a > 0) - (a < 0)); }

// max and min.  A NaN wins.  Of two equal zeros the second wins, as in torch's vectors.
template <class T> PYC_INLINE T pyc_max(T a, T b) {
    return a > b || a != a ? a : b;
}
template <class T> PYC_INLINE T pyc_min(T a, T b) {
    return a < b || a != a ? a : b;
}

// ---- exp, log and relatives: float -------------------------------------------------------------------------------

#define PYC_LN2_HI 0.693359375f
#define PYC_LN2_LO -2.12194440e-4f

// exp(r) - 1 for |r| <= ln(2)/2
PYC_INLINE float pyc_expm1_poly(float r) {
    float p = pyc_fma(1.991427125e-04f, r, 1.394106308e-03f);
    p = pyc_fma(p, r, 8.333273232e-03f);
    p = pyc_fma(p, r, 4.166635498e-02f);
    p = pyc_fma(p, r, 1.666666716e-01f);
    p = pyc_fma(p, r, 5.000000000e-01f);
    return pyc_fma(p, r * r, r);
}

// Adding 1.5 * 2^23 rounds to an integer, stored in the low bits of the sum.  Shifted by 23, that integer is an
// exponent.
#define PYC_ROUND 12582912.0f

// x in [-87.3, 88.7].  The exponent of the result is set by adding to its bits.
PYC_INLINE float pyc_exp_core(float x) {
    float shifted = pyc_fma(x, 1.44269504f, PYC_ROUND), n = shifted - PYC_ROUND;
    float r = pyc_fma(n, -PYC_LN2_LO, pyc_fma(n, -PYC_LN2_HI, x));
    float p = pyc_fma(1.395060215e-03f, r, 8.368953131e-03f);
    p = pyc_fma(p, r, 4.166620597e-02f);
    p = pyc_fma(p, r, 1.666651815e-01f);
    p = pyc_fma(p, r, 5.000000000e-01f);
    float e = pyc_fma(p, r * r, r) + 1.0f;
    return pyc_bits<float>(pyc_bits<uint32_t>(e) + (pyc_bits<uint32_t>(shifted) << 23));
}

PYC_INLINE float pyc_exp(float x) {
    float e = pyc_exp_core(x);  // outside its range the bits are arbitrary, and unused
    e = x < -87.33654f ? 0.0f : e;
    return x <= 88.72283f ? e : x + __builtin_inff();  // overflow; NaN stays NaN
}

PYC_INLINE float pyc_exp2(float x) {
    float in = x > 129.0f ? 129.0f : x < -127.0f ? -127.0f : x;
    float n = __builtin_rintf(in);
    float e = pyc_expm1_poly((in - n) * 0.693147182f) + 1.0f;
    e = pyc_bits<float>(pyc_bits<uint32_t>(e) + ((uint32_t)(int32_t)n << 23));
    e = x < -126.0f ? 0.0f : e;
    return x < 128.0f ? e : x + __builtin_inff();
}

PYC_INLINE float pyc_expm1(float x) {
    float in = x > 88.0f ? 88.0f : x < -20.0f ? -20.0f : x;
    float n = __builtin_rintf(in * 1.44269504f);
    float r = pyc_fma(n, -PYC_LN2_LO, pyc_fma(n, -PYC_LN2_HI, in));
    float s = pyc_bits<float>((uint32_t)((int32_t)n + 127) << 23);
    float e = pyc_fma(pyc_expm1_poly(r), s, s - 1.0f);
    e = x == 0.0f ? x : e;
    return x <= 88.0f ? e : pyc_exp(x);
}

// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]
PYC_INLINE float pyc_log1p_tail(float f) {
    float p = pyc_fma(-7.865781337e-02f, f, 1.288341135e-01f);
    p = pyc_fma(p, f, -1.312699020e-01f);
    p = pyc_fma(p, f, 1.418092847e-01f);
    p = pyc_fma(p, f, -1.662476510e-01f);
    p = pyc_fma(p, f, 2.000229955e-01f);
    p = pyc_fma(p, f, -2.500080168e-01f);
    p = pyc_fma(p, f, 3.333331645e-01f);
    return pyc_fma(p * f, f * f, -0.5f * f * f);
}

struct pyc_split { float k, f; };
// Splits x = 2^k (1 + f).  x is positive (denormals included).
PYC_INLINE pyc_split pyc_split_log(float x) {
    float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
    float shift = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t u = pyc_bits<uint32_t>(scaled) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)((int32_t)(u >> 23) - 127) + shift;
    return pyc_split{k, pyc_bits<float>((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f};
}
PYC_INLINE float pyc_log_edges(float x, float r) {
    r = x == 0.0f ? -__builtin_inff() : r;
    r = x < 0.0f ? __builtin_nanf("") : r;
    return x < __builtin_inff() ? r : x;  // inf and NaN stay the same
}
PYC_INLINE float pyc_log(float x) {
    pyc_split s = pyc_split_log(x);
    float r = pyc_fma(s.k, PYC_LN2_LO, pyc_log1p_tail(s.f)) + s.f;
    return pyc_log_edges(x, pyc_fma(s.k, PYC_LN2_HI, r));
}
PYC_INLINE float pyc_log2(float x) {
    pyc_split s = pyc_split_log(x);
    float t = pyc_log1p_tail(s.f);
    float lo = pyc_fma(s.f, 1.92596299e-8f, t * 1.44269504f);
    return pyc_log_edges(x, s.k + pyc_fma(s.f, 1.44269502f, lo));
}
PYC_INLINE float pyc_log10(float x) {
    pyc_split s = pyc_split_log(x);
    float t = pyc_log1p_tail(s.f);
    double r = ((double)s.f + (double)t) * 0.4342944819032518 + (double)s.k * 0.3010299956639812;
    return pyc_log_edges(x, (float)r);
}
PYC_INLINE float pyc_log1p(float x) {
    float u = 1.0f + x;
    float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    pyc_split s = pyc_split_log(u);
    float r = pyc_fma(s.k, PYC_LN2_LO, pyc_log1p_tail(s.f) + lost / u) + s.f;
    r = pyc_fma(s.k, PYC_LN2_HI, r);
    r = pyc_abs(x) < 1e-7f ? x : r;
    return pyc_log_edges(u, r);
}

PYC_INLINE float pyc_sigmoid(float x) { return 1.0f / (1.0f + pyc_exp(-x)); }

// exp(x) - 1 for x in [-87, 88].  The relative error is small everywhere.
PYC_INLINE float pyc_expm1_core(float x) {
    float shifted = pyc_fma(x, 1.44269504f, PYC_ROUND), n = shifted - PYC_ROUND;
    float r = pyc_fma(n, -PYC_LN2_LO, pyc_fma(n, -PYC_LN2_HI, x));
    float s = pyc_bits<float>((pyc_bits<uint32_t>(shifted) << 23) + 0x3f800000u);
    return pyc_fma(pyc_expm1_poly(r), s, s - 1.0f);
}

// With a = |x|: a + a^3 P(a^2), which is at most a, then 1 - 2 / (exp(2a) + 1).
PYC_INLINE float pyc_tanh(float x) {
    float a = pyc_abs(x), z = a * a;
    float p = pyc_fma(-6.132304202765226e-3f, z, 2.0969431847333908e-2f);
    p = pyc_fma(p, z, -5.382677912712097e-2f);
    p = pyc_fma(p, z, 0.1333233118057251f);
    p = pyc_fma(p, z, -0.3333331048488617f);
    float low = pyc_fma(p * z, a, a);
    float high = 1.0f - 2.0f / (pyc_exp_core(2.0f * (a > 10.0f ? 10.0f : a)) + 1.0f);
    return pyc_copysign(a > 0.5625f ? high : low, x);
}

// 1 - exp(-t Q(t)) with t = |x|: one polynomial for the whole range
PYC_INLINE float pyc_erf(float x) {
    float a = pyc_abs(x), t = a > 4.0f ? 4.0f : a;
    float q = pyc_fma(-9.256311387e-06f, t, 1.176416044e-04f);
    q = pyc_fma(q, t, -6.328378804e-04f);
    q = pyc_fma(q, t, 1.667029224e-03f);
    q = pyc_fma(q, t, -1.603979617e-04f);
    q = pyc_fma(q, t, -1.915306225e-02f);
    q = pyc_fma(q, t, 1.027778313e-01f);
    q = pyc_fma(q, t, 6.366193891e-01f);
    q = pyc_fma(q, t, 0.12837916709551256f);  // Q - 1: adding t last loses least
    return pyc_copysign(pyc_expm1_core(-pyc_fma(t, q, t)), x);
}

// 1 + erf(x), as gelu needs it: 2^y with a polynomial y of |x|, or 2 minus that.  So no digit is lost near 0.
PYC_INLINE float pyc_one_plus(float x, float power) {
    float e = pyc_abs(x) > 4.0f ? 0.0f : power;  // outside, the bits are arbitrary
    return x < 0.0f ? e : 2.0f - e;
}
PYC_INLINE float pyc_one_plus_erf(float x) {
    float t = pyc_abs(x);
    float y = pyc_fma(3.705779571e-06f, t, -6.455777820e-05f);
    y = pyc_fma(y, t, 4.457961560e-04f);
    y = pyc_fma(y, t, -1.316730408e-03f);
    y = pyc_fma(y, t, -1.194046510e-03f);
    y = pyc_fma(y, t, 2.868038896e-02f);
    y = pyc_fma(y, t, -1.486858925e-01f);
    y = pyc_fma(y, t, -9.183740562e-01f);
    y = pyc_fma(y, t, -1.627911337e+00f);  // the exponent is y t
    float shifted = pyc_fma(y, t, PYC_ROUND), r = pyc_fma(y, t, -(shifted - PYC_ROUND));
    float p = pyc_fma(1.326472717e-03f, r, 9.671512918e-03f);
    p = pyc_fma(p, r, 5.550733746e-02f);
    p = pyc_fma(p, r, 2.402224208e-01f);
    p = pyc_fma(p, r, 6.931469776e-01f);
    p = pyc_fma(p, r, 1.0f);
    return pyc_one_plus(x, pyc_bits<float>(pyc_bits<uint32_t>(p) + (pyc_bits<uint32_t>(shifted) << 23)));
}

// ---- exp, log: double --------------------------------------------------------------------------------------------

PYC_INLINE double pyc_exp(double x) {
    double in = x > 710.0 ? 710.0 : x < -709.0 ? -709.0 : x;
    double n = __builtin_rint(in * 1.4426950408889634);
    double r = pyc_fma(n, -1.9082149292705877e-10, pyc_fma(n, -6.93147180369123816490e-01, in));
    double p = 1.6059043836821613e-10;  // 1/13!
    p = pyc_fma(p, r, 2.08767569878681e-9);
    p = pyc_fma(p, r, 2.505210838544172e-8);
    p = pyc_fma(p, r, 2.755731922398589e-7);
    p = pyc_fma(p, r, 2.7557319223985893e-6);
    p = pyc_fma(p, r, 2.48015873015873e-5);
    p = pyc_fma(p, r, 1.984126984126984e-4);
    p = pyc_fma(p, r, 1.3888888888888889e-3);
    p = pyc_fma(p, r, 8.333333333333333e-3);
    p = pyc_fma(p, r, 4.1666666666666664e-2);
    p = pyc_fma(p, r, 1.6666666666666666e-1);
    p = pyc_fma(p, r, 0.5);
    double e = pyc_fma(p, r * r, r) + 1.0;
    e = pyc_bits<double>(pyc_bits<uint64_t>(e) + ((uint64_t)(int64_t)(int32_t)n << 52));
    e = x < -708.3964185322641 ? 0.0 : e;
    return x <= 709.782712893384 ? e : x + __builtin_inf();
}

PYC_INLINE double pyc_log(double x) {
    double scaled = x < 2.2250738585072014e-308 ? x * 18014398509481984.0 : x;
    int32_t shift = x < 2.2250738585072014e-308 ? -54 : 0;
    uint64_t u = pyc_bits<uint64_t>(scaled) + (0x3ff0000000000000ul - 0x3fe6a09e667f3bcdul);
    double k = (double)((int32_t)(u >> 52) - 1023 + shift);
    double f = pyc_bits<double>((u & 0x000ffffffffffffful) + 0x3fe6a09e667f3bcdul) - 1.0;
    double s = f / (2.0 + f), z = s * s;
    double p = 1.0 / 21.0;
    p = pyc_fma(p, z, 1.0 / 19.0); p = pyc_fma(p, z, 1.0 / 17.0); p = pyc_fma(p, z, 1.0 / 15.0);
    p = pyc_fma(p, z, 1.0 / 13.0); p = pyc_fma(p, z, 1.0 / 11.0); p = pyc_fma(p, z, 1.0 / 9.0);
    p = pyc_fma(p, z, 1.0 / 7.0); p = pyc_fma(p, z, 1.0 / 5.0); p = pyc_fma(p, z, 1.0 / 3.0);
    double half = 0.5 * f * f;
    double low = pyc_fma(s, pyc_fma(p * 2.0, z, half), k * 1.90821492927058770002e-10);
    double r = pyc_fma(k, 6.93147180369123816490e-01, -((half - low) - f));
    r = x == 0.0 ? -__builtin_inf() : r;
    r = x < 0.0 ? __builtin_nan("") : r;
    return x < __builtin_inf() ? r : x;
}
PYC_INLINE double pyc_sigmoid(double x) { return 1.0 / (1.0 + pyc_exp(-x)); }

// |x|^y through doubles, then the special cases of C's pow, in order.
PYC_INLINE float pyc_pow(float x, float y) {
    double magnitude = pyc_exp((double)y * pyc_log((double)pyc_abs(x)));
    float r = (float)magnitude;
    float whole = __builtin_truncf(y), half = 0.5f * y;
    bool integer = whole == y, odd = integer && __builtin_truncf(half) != half;
    r = x < 0.0f && !integer && x != -__builtin_inff() ? __builtin_nanf("") : r;
    r = pyc_signbit(x) && odd ? -r : r;
    r = x != x || y != y ? __builtin_nanf("") : r;
    r = pyc_abs(x) == 1.0f && pyc_isinf(y) ? 1.0f : r;
    return x == 1.0f || y == 0.0f ? 1.0f : r;
}

// ---- sin, cos: float ---------------------------------------------------------------------------------------------

// 2^e * 2/pi modulo 4, as a sum of two doubles.  Used to reduce arguments above 2^30.  Two tables, because gcc does not
// vectorise reads from an array of pairs.
static const double pyc_two_over_pi_high[105] = {
    0x1.45f306dc9c883p-1, 0x1.45f306dc9c883p+0, 0x1.45f306dc9c883p+1, 0x1.17cc1b727220bp+0,
    0x1.17cc1b727220bp+1, 0x1.7cc1b727220a9p-2, 0x1.7cc1b727220a9p-1, 0x1.7cc1b727220a9p+0,
    0x1.7cc1b727220a9p+1, 0x1.f306dc9c882a5p+0, 0x1.f306dc9c882a5p+1, 0x1.e60db9391054ap+1,
    0x1.cc1b727220a95p+1, 0x1.9836e4e44152ap+1, 0x1.306dc9c882a54p+1, 0x1.836e4e44152a0p-1,
    0x1.836e4e44152a0p+0, 0x1.836e4e44152a0p+1, 0x1.06dc9c882a540p+1, 0x1.b727220a94fe1p-4,
    0x1.b727220a94fe1p-3, 0x1.b727220a94fe1p-2, 0x1.b727220a94fe1p-1, 0x1.b727220a94fe1p+0,
    0x1.b727220a94fe1p+1, 0x1.6e4e441529fc2p+1, 0x1.b9391054a7f0ap+0, 0x1.b9391054a7f0ap+1,
    0x1.727220a94fe14p+1, 0x1.c9c882a53f84fp+0, 0x1.c9c882a53f84fp+1, 0x1.9391054a7f09dp+1,
    0x1.27220a94fe13bp+1, 0x1.391054a7f09d6p-1, 0x1.391054a7f09d6p+0, 0x1.391054a7f09d6p+1,
    0x1.c882a53f84eb0p-1, 0x1.c882a53f84eb0p+0, 0x1.c882a53f84eb0p+1, 0x1.91054a7f09d5fp+1,
    0x1.220a94fe13abfp+1, 0x1.1054a7f09d5f4p-1, 0x1.1054a7f09d5f4p+0, 0x1.1054a7f09d5f4p+1,
    0x1.054a7f09d5f48p-2, 0x1.054a7f09d5f48p-1, 0x1.054a7f09d5f48p+0, 0x1.054a7f09d5f48p+1,
    0x1.529fc2757d1f5p-4, 0x1.529fc2757d1f5p-3, 0x1.529fc2757d1f5p-2, 0x1.529fc2757d1f5p-1,
    0x1.529fc2757d1f5p+0, 0x1.529fc2757d1f5p+1, 0x1.4a7f09d5f47d5p+0, 0x1.4a7f09d5f47d5p+1,
    0x1.29fc2757d1f53p+0, 0x1.29fc2757d1f53p+1, 0x1.4fe13abe8fa9ap-1, 0x1.4fe13abe8fa9ap+0,
    0x1.4fe13abe8fa9ap+1, 0x1.3f84eafa3ea6ap+0, 0x1.3f84eafa3ea6ap+1, 0x1.fc2757d1f534ep-1,
    0x1.fc2757d1f534ep+0, 0x1.fc2757d1f534ep+1, 0x1.f84eafa3ea69cp+1, 0x1.f09d5f47d4d37p+1,
    0x1.e13abe8fa9a6fp+1, 0x1.c2757d1f534dep+1, 0x1.84eafa3ea69bcp+1, 0x1.09d5f47d4d377p+1,
    0x1.3abe8fa9a6ee0p-3, 0x1.3abe8fa9a6ee0p-2, 0x1.3abe8fa9a6ee0p-1, 0x1.3abe8fa9a6ee0p+0,
    0x1.3abe8fa9a6ee0p+1, 0x1.d5f47d4d37703p-1, 0x1.d5f47d4d37703p+0, 0x1.d5f47d4d37703p+1,
    0x1.abe8fa9a6ee07p+1, 0x1.57d1f534ddc0ep+1, 0x1.5f47d4d377037p+0, 0x1.5f47d4d377037p+1,
    0x1.7d1f534ddc0dbp+0, 0x1.7d1f534ddc0dbp+1, 0x1.f47d4d377036ep+0, 0x1.f47d4d377036ep+1,
    0x1.e8fa9a6ee06dbp+1, 0x1.d1f534ddc0db6p+1, 0x1.a3ea69bb81b6cp+1, 0x1.47d4d377036d9p+1,
    0x1.1f534ddc0db63p+0, 0x1.1f534ddc0db63p+1, 0x1.f534ddc0db629p-2, 0x1.f534ddc0db629p-1,
    0x1.f534ddc0db629p+0, 0x1.f534ddc0db629p+1, 0x1.ea69bb81b6c53p+1, 0x1.d4d377036d8a5p+1,
    0x1.a9a6ee06db14bp+1, 0x1.534ddc0db6296p+1, 0x1.4d377036d8a56p+0, 0x1.4d377036d8a56p+1,
    0x1.34ddc0db6295ap+0,
};
static const double pyc_two_over_pi_low[105] = {
    -0x1.6b01ec5417056p-55, -0x1.6b01ec5417056p-54, -0x1.6b01ec5417056p-53, -0x1.ac07b1505c159p-54,
    -0x1.ac07b1505c159p-53, 0x1.3f84eafa3ea6ap-56, 0x1.3f84eafa3ea6ap-55, 0x1.3f84eafa3ea6ap-54,
    0x1.3f84eafa3ea6ap-53, 0x1.fc2757d1f534ep-55, 0x1.fc2757d1f534ep-54, 0x1.fc2757d1f534ep-53,
    -0x1.ec54170565912p-59, -0x1.ec54170565912p-58, -0x1.ec54170565912p-57, -0x1.ec54170565912p-56,
    -0x1.ec54170565912p-55, -0x1.ec54170565912p-54, -0x1.ec54170565912p-53, 0x1.d5f47d4d37703p-59,
    0x1.d5f47d4d37703p-58, 0x1.d5f47d4d37703p-57, 0x1.d5f47d4d37703p-56, 0x1.d5f47d4d37703p-55,
    0x1.d5f47d4d37703p-54, 0x1.d5f47d4d37703p-53, -0x1.505c1596447e5p-55, -0x1.505c1596447e5p-54,
    -0x1.505c1596447e5p-53, -0x1.4170565911f92p-54, -0x1.4170565911f92p-53, 0x1.7d1f534ddc0dbp-53,
    -0x1.05c1596447e49p-53, -0x1.70565911f924fp-58, -0x1.70565911f924fp-57, -0x1.70565911f924fp-56,
    -0x1.70565911f924fp-55, -0x1.70565911f924fp-54, -0x1.70565911f924fp-53, 0x1.1f534ddc0db63p-53,
    -0x1.c1596447e493bp-53, 0x1.f534ddc0db629p-55, 0x1.f534ddc0db629p-54, 0x1.f534ddc0db629p-53,
    -0x1.596447e493ad5p-57, -0x1.596447e493ad5p-56, -0x1.596447e493ad5p-55, -0x1.596447e493ad5p-54,
    0x1.a6ee06db14acdp-59, 0x1.a6ee06db14acdp-58, 0x1.a6ee06db14acdp-57, 0x1.a6ee06db14acdp-56,
    0x1.a6ee06db14acdp-55, 0x1.a6ee06db14acdp-54, -0x1.6447e493ad4cep-55, -0x1.6447e493ad4cep-54,
    0x1.377036d8a5665p-54, 0x1.377036d8a5665p-53, 0x1.bb81b6c52b328p-55, 0x1.bb81b6c52b328p-54,
    0x1.bb81b6c52b328p-53, -0x1.11f924eb53362p-54, -0x1.11f924eb53362p-53, -0x1.1f924eb53361ep-56,
    -0x1.1f924eb53361ep-55, -0x1.1f924eb53361ep-54, -0x1.1f924eb53361ep-53, 0x1.c0db6295993c4p-53,
    -0x1.f924eb53361dep-55, -0x1.f924eb53361dep-54, -0x1.f924eb53361dep-53, 0x1.b6c52b3278872p-58,
    0x1.b6c52b3278872p-57, 0x1.b6c52b3278872p-56, 0x1.b6c52b3278872p-55, 0x1.b6c52b3278872p-54,
    0x1.b6c52b3278872p-53, 0x1.b6295993c4390p-55, 0x1.b6295993c4390p-54, 0x1.b6295993c4390p-53,
    -0x1.275a99b0ef1bfp-54, -0x1.275a99b0ef1bfp-53, -0x1.3ad4cd8778df8p-55, -0x1.3ad4cd8778df8p-54,
    0x1.8a5664f10e410p-54, 0x1.8a5664f10e410p-53, -0x1.d6a66c3bc6fbep-54, -0x1.d6a66c3bc6fbep-53,
    0x1.4acc9e21c8210p-55, 0x1.4acc9e21c8210p-54, 0x1.4acc9e21c8210p-53, -0x1.6a66c3bc6fbe0p-53,
    -0x1.a99b0ef1bef80p-54, -0x1.a99b0ef1bef80p-53, 0x1.664f10e4107f9p-56, 0x1.664f10e4107f9p-55,
    0x1.664f10e4107f9p-54, 0x1.664f10e4107f9p-53, -0x1.3361de37df00dp-53, 0x1.993c439041fe5p-53,
    -0x1.9b0ef1bef806cp-54, -0x1.9b0ef1bef806cp-53, 0x1.93c439041fe51p-54, 0x1.93c439041fe51p-53,
    -0x1.b0ef1bef806bap-54,
};

struct pyc_angle { float r; int32_t quadrant; };
PYC_INLINE pyc_angle pyc_reduce_angle(float x) {
    double a = (double)x;
    double n = __builtin_rint(a * 0x1.45f306dc9c883p-1);
    double r = pyc_fma(n, -0x1.1a62633145c07p-54, pyc_fma(n, -0x1.921fb54442d18p+0, a));
    // x = m 2^e with a 24-bit integer m.  m * (2^e * 2/pi mod 4) is x in quadrants.
    uint32_t u = pyc_bits<uint32_t>(x);
    int32_t e = (int32_t)((u >> 23) & 255u) - 150;
    e = e < 0 ? 0 : e > 104 ? 104 : e;
    double m = (double)(int32_t)((u & 0x7fffffu) | 0x800000u);
    m = (int32_t)u < 0 ? -m : m;
    double high = pyc_two_over_pi_high[e], low = pyc_two_over_pi_low[e];
    double nb = __builtin_rint(m * high);
    double rb = (pyc_fma(m, high, -nb) + m * low) * 0x1.921fb54442d18p+0;
    bool big = pyc_abs(a) > 1073741824.0;
    n = big ? nb : n;
    r = big ? rb : r;
    return pyc_angle{x - x == 0.0f ? (float)r : __builtin_nanf(""), (int32_t)n};
}
PYC_INLINE float pyc_sin_quadrant(float r, int32_t quadrant) {
    float s = r * r;
    float p = pyc_fma(2.718313226e-06f, s, -1.983933616e-04f);
    p = pyc_fma(p, s, 8.333329111e-03f);
    p = pyc_fma(p, s, -1.666666716e-01f);
    float sine = pyc_fma(p * s, r, r);
    float q = pyc_fma(2.443819176e-05f, s, -1.388736535e-03f);
    q = pyc_fma(q, s, 4.166664556e-02f);
    float cosine = pyc_fma(q, s * s, pyc_fma(s, -0.5f, 1.0f));
    float v = quadrant & 1 ? cosine : sine;
    return pyc_bits<float>(pyc_bits<uint32_t>(v) ^ ((uint32_t)(quadrant & 2) << 30));
}
// Near angles need no double and no table.  The three parts of pi/2 are positive.  The first is a multiple of 2^-23, so
// that x - n * part is exact.
PYC_INLINE bool pyc_is_far(float x) { return pyc_abs(x) > 10000.0f; }
PYC_INLINE pyc_angle pyc_near_angle(float x) {
    float shifted = pyc_fma(x, 0.636619747f, PYC_ROUND), n = shifted - PYC_ROUND;
    float r = pyc_fma(n, -0x1.921fb4p+0f, x);
    r = pyc_fma(n, -0x1.4442d0p-24f, r);
    r = pyc_fma(n, -0x1.846988p-48f, r);
    return pyc_angle{r, pyc_bits<int32_t>(shifted)};
}
// For generated loops in which no argument is far.  The results equal pyc_sin and pyc_cos.
PYC_INLINE float pyc_sin_near(float x) {
    pyc_angle a = pyc_near_angle(x);
    return x == 0.0f ? x : pyc_sin_quadrant(a.r, a.quadrant);
}
PYC_INLINE float pyc_cos_near(float x) {
    pyc_angle a = pyc_near_angle(x);
    return pyc_sin_quadrant(a.r, a.quadrant + 1);
}
PYC_INLINE pyc_angle pyc_any_angle(float x) {
    pyc_angle near = pyc_near_angle(x), far = pyc_reduce_angle(x);
    bool is_far = !(pyc_abs(x) <= 10000.0f);
    return pyc_angle{is_far ? far.r : near.r, is_far ? far.quadrant : near.quadrant};
}
PYC_INLINE float pyc_sin(float x) {
    pyc_angle a = pyc_any_angle(x);
    return x == 0.0f ? x : pyc_sin_quadrant(a.r, a.quadrant);
}
PYC_INLINE float pyc_cos(float x) {
    pyc_angle a = pyc_any_angle(x);
    return pyc_sin_quadrant(a.r, a.quadrant + 1);
}

// ---- the rest: libm, one element at a time -----------------------------------------------------------------------

// A compiler replaces a function of libm at a number that it knows by the nearest result, which is not always libm's.  So
// the functions have names that it does not know.
#define PYC_TEXT(text) #text
#define PYC_LABEL(prefix, name) __asm__(PYC_TEXT(prefix) #name)
#define PYC_EXTERN extern "C" __attribute__((const, nothrow))
#define PYC_DOUBLE1(name) PYC_EXTERN double pyc_libm_##name(double) PYC_LABEL(__USER_LABEL_PREFIX__, name); \
    PYC_INLINE double pyc_##name(double x) { return pyc_libm_##name(x); }
#define PYC_LIBM1(name) PYC_DOUBLE1(name) \
    PYC_EXTERN float pyc_libm_##name##f(float) PYC_LABEL(__USER_LABEL_PREFIX__, name##f); \
    PYC_INLINE float pyc_##name(float x) { return pyc_libm_##name##f(x); }
// Functions whose float form in libm is off by several units of the last place.
#define PYC_WIDE1(name) PYC_DOUBLE1(name) PYC_INLINE float pyc_##name(float x) { return (float)pyc_libm_##name(x); }
#define PYC_DOUBLE2(name) PYC_EXTERN double pyc_libm_##name(double, double) PYC_LABEL(__USER_LABEL_PREFIX__, name); \
    PYC_INLINE double pyc_##name(double x, double y) { return pyc_libm_##name(x, y); }
#define PYC_LIBM2(name) PYC_DOUBLE2(name) \
    PYC_EXTERN float pyc_libm_##name##f(float, float) PYC_LABEL(__USER_LABEL_PREFIX__, name##f); \
    PYC_INLINE float pyc_##name(float x, float y) { return pyc_libm_##name##f(x, y); }
PYC_LIBM1(tan) PYC_LIBM1(asin) PYC_LIBM1(acos) PYC_LIBM1(atan) PYC_LIBM1(sinh) PYC_LIBM1(cosh) PYC_LIBM1(asinh)
PYC_LIBM1(acosh) PYC_LIBM1(atanh) PYC_WIDE1(erfc) PYC_WIDE1(lgamma)
PYC_LIBM2(atan2) PYC_LIBM2(nextafter) PYC_LIBM2(hypot)
PYC_DOUBLE2(pow)  // gcc 12's vectorizer takes pow(x, 0.5) for sqrt(x), also at -0.0 and -inf
PYC_DOUBLE1(exp2) PYC_DOUBLE1(expm1) PYC_DOUBLE1(log2) PYC_DOUBLE1(log10) PYC_DOUBLE1(log1p) PYC_DOUBLE1(sin)
PYC_DOUBLE1(cos) PYC_DOUBLE1(erf)
// E / (E + 2) with E = exp(2|x|) - 1, corrected by what the sum and the quotient lost.  At most |x|.
PYC_INLINE double pyc_tanh(double x) {
    double a = pyc_abs(x), e = pyc_expm1(2.0 * (a > 20.0 ? 20.0 : a));
    double d = e + 2.0, inverse = 1.0 / d, q = e * inverse;
    double left = pyc_fma(-q, (2.0 - d) + e, pyc_fma(-q, d, e));
    q = pyc_fma(left, inverse, q);
    return pyc_copysign(q > a ? a : q, x);
}
PYC_INLINE double pyc_one_plus_erf(double x) { return 1.0 + pyc_erf(x); }
PYC_INLINE float pyc_fmod(float a, float b) { return fmodf(a, b); }
PYC_INLINE double pyc_fmod(double a, double b) { return fmod(a, b); }

// Remainder with the divisor's sign, and floor division as in c10::div_floor_floating.
template <class T> PYC_INLINE T pyc_mod(T a, T b) {
    T r = pyc_fmod(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
template <class T> PYC_INLINE T pyc_floordiv(T a, T b) {
    T r = pyc_fmod(a, b), q = (a - r) / b;
    q = r != 0 && (b < 0) != (r < 0) ? q - 1 : q;
    T f = pyc_floor(q);
    f = q - f > (T)0.5 ? f + 1 : f;
    f = q != 0 ? f : pyc_copysign((T)0, a / b);
    return b == 0 ? a / b : f;
}

// Inverse error function: Winitzki's approximation (error 2e-3), then Halley's steps in double.
PYC_INLINE double pyc_erfinv(double y) {
    double a = pyc_abs(y);
    if (!(a < 1.0)) return a == 1.0 ? pyc_copysign(__builtin_inf(), y) : __builtin_nan("");
    if (a == 0.0) return y;
    double w = -pyc_log1p(-a * a), b = 4.330746750799873 - 0.5 * w, x = pyc_sqrt(pyc_sqrt(b * b + w * 6.802721088435374) - b);
    if (!(x > 0.0)) x = 0.8862269254527580 * a;
    for (int i = 0; i < 4; i++) {
        double slope = 1.1283791670955126 * pyc_exp(-x * x);
        double off = a < 0.5 ? pyc_erf(x) - a : (1.0 - a) - pyc_erfc(x);
        double step = off / slope;
        x -= step / (1.0 + x * step);  // Halley
    }
    return pyc_copysign(x, y);
}
PYC_INLINE float pyc_erfinv(float y) { return (float)pyc_erfinv((double)y); }

PYC_INLINE double pyc_digamma(double x) {
    if (x == 0.0) return pyc_copysign(__builtin_inf(), -x);
    double reflected = 0.0;
    if (x < 0.0) {
        double whole = pyc_trunc(x);
        if (whole == x) return __builtin_nan("");
        reflected = -3.14159265358979323846 / pyc_tan(3.14159265358979323846 * (x - whole));
        x = 1.0 - x;
    }
    double shift = 0.0;
    for (; x < 10.0; x += 1.0) shift -= 1.0 / x;
    double z = 1.0 / (x * x);
    double tail = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 -
                  z * (691.0 / 32760 - z / 12.0))))));
    tail = x < 1e17 ? tail : 0.0;
    return pyc_log(x) - 0.5 / x - tail + shift + reflected;
}
PYC_INLINE float pyc_digamma(float x) { return (float)pyc_digamma((double)x); }
