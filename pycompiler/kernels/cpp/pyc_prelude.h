// The prelude of generated C++: types, conversions, integer helpers.  It includes the other two headers at its end.  No
// system header is included, because the user waits for each translation unit.  Functions are branch-free where it
// matters, so that gcc and clang vectorise the loops that call them.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;  // LP64: as in the system's stdint.h on Linux
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

#define PYC_MEMBER inline __attribute__((always_inline))
#define PYC_INLINE static PYC_MEMBER
#define PYC_RESTRICT __restrict__
#define PYC_EXPORT __attribute__((visibility("default")))
#define PYC_INF __builtin_inff()
#define PYC_NAN __builtin_nanf("")

#ifdef _OPENMP
extern "C" int omp_get_thread_num(void);
PYC_INLINE int32_t pyc_thread() { return omp_get_thread_num(); }
#else
PYC_INLINE int32_t pyc_thread() { return 0; }
#endif
PYC_INLINE void* pyc_allocate(uint64_t bytes) { return __builtin_malloc(bytes); }
PYC_INLINE void pyc_release(void* p) { __builtin_free(p); }

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

template <class To, class From> PYC_INLINE To pyc_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "pyc_bits: same size");
    return __builtin_bit_cast(To, value);
}

// ---- conversions -------------------------------------------------------------------------------------------------

PYC_INLINE float pyc_from_bf16(bf16 v) { return pyc_bits<float>((uint32_t)v.bits << 16); }

// Rounds to nearest, ties to even.  Every NaN becomes the quiet NaN 0x7fc0, as in c10::BFloat16.
PYC_INLINE bf16 pyc_to_bf16(float v) {
    uint32_t u = pyc_bits<uint32_t>(v);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return bf16{(uint16_t)(v != v ? 0x7fc0u : rounded)};
}

// Converts a float that is exactly a bf16 number.
PYC_INLINE bf16 pyc_narrow_bf16(float v) { return bf16{(uint16_t)(pyc_bits<uint32_t>(v) >> 16)}; }

PYC_INLINE float pyc_from_f16(f16 v) {
    uint32_t magnitude = (uint32_t)(v.bits & 0x7fffu), sign = (uint32_t)(v.bits & 0x8000u) << 16;
    float normal = pyc_bits<float>((magnitude << 13) + (112u << 23));           // exponent re-biased
    float special = pyc_bits<float>((magnitude << 13) | 0x7f800000u);           // inf, NaN
    float denormal = (float)(int32_t)magnitude * 5.9604644775390625e-8f;               // m * 2^-24
    float value = magnitude >= 0x7c00u ? special : magnitude >= 0x0400u ? normal : denormal;
    return pyc_bits<float>(pyc_bits<uint32_t>(value) | sign);
}

PYC_INLINE f16 pyc_to_f16(float v) {
    uint32_t u = pyc_bits<uint32_t>(v), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    uint32_t normal = (m - (112u << 23) + 0xfffu + ((m >> 13) & 1u)) >> 13;
    // Below 2^-14: adding 0.5 aligns the result's last bit with the float's, and rounds to even at the same time.
    uint32_t denormal = pyc_bits<uint32_t>(pyc_bits<float>(m < 0x38800000u ? m : 0u) + 0.5f) - 0x3f000000u;
    uint32_t h = m > 0x7f800000u ? 0x7e00u : m >= 0x477ff000u ? 0x7c00u : m < 0x38800000u ? denormal : normal;
    return f16{(uint16_t)(h | sign)};
}

// Converts a float that is exactly an f16 number, or an f16 NaN, whose bits it keeps.
PYC_INLINE f16 pyc_narrow_f16(float v) {
    uint32_t u = pyc_bits<uint32_t>(v), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    uint32_t denormal = pyc_bits<uint32_t>(pyc_bits<float>(m < 0x38800000u ? m : 0u) + 0.5f) - 0x3f000000u;
    uint32_t normal = (m - (112u << 23)) >> 13;
    uint32_t h = m >= 0x7f800000u ? (m >> 13) & 0x7fffu : m < 0x38800000u ? denormal : normal;
    return f16{(uint16_t)(h | sign)};
}

// Converts the storage type to the compute type, and back.  bool is stored as a byte and computed as bool.
PYC_INLINE float pyc_load(bf16 v) { return pyc_from_bf16(v); }
PYC_INLINE float pyc_load(f16 v) { return pyc_from_f16(v); }
template <class T> PYC_INLINE T pyc_load(T v) { return v; }

template <class To> struct pyc_as {
    template <class From> static PYC_MEMBER To store(From v) { return (To)v; }
    template <class From> static PYC_MEMBER To cast(From v) { return (To)v; }
};
template <> struct pyc_as<bf16> { static PYC_MEMBER bf16 store(float v) { return pyc_to_bf16(v); } };
template <> struct pyc_as<f16> { static PYC_MEMBER f16 store(float v) { return pyc_to_f16(v); } };
template <> struct pyc_as<bool> {
    template <class From> static PYC_MEMBER bool cast(From v) { return v != (From)0; }
};
template <class To, class From> PYC_INLINE To pyc_store(From v) { return pyc_as<To>::store(v); }
template <class To, class From> PYC_INLINE To pyc_cast(From v) { return pyc_as<To>::cast(v); }
// Hides an integer from the optimiser.  gcc treats float -> integer -> float as a truncation of the float.  The
// truncated float may be -0 or NaN, and has no integer range.
#if __has_builtin(__builtin_assoc_barrier)
#define PYC_KEPT(v) __builtin_assoc_barrier(v)
#elif defined(__clang__)
#define PYC_KEPT(v) (v)
#else
#define PYC_KEPT(v) ({ auto pyc_v = (v); __asm__("" : "+r"(pyc_v)); pyc_v; })
#endif
// Converts a float to an integer: truncation, then wrap-around.  Narrow integers go through the same wider type as in
// ATen.  Out of range, and for NaN, the processor returns the least integer.  In C this is undefined, and compilers
// fold constants to other values.
template <class Via> struct pyc_bound;
template <> struct pyc_bound<int32_t> { static constexpr double top = 2147483648.0; };
template <> struct pyc_bound<int64_t> { static constexpr double top = 9223372036854775808.0; };
template <class To, class Via, class From> struct pyc_to_int {
    static PYC_MEMBER To of(From v) {
        const From top = (From)pyc_bound<Via>::top;
        const Via least = (Via)((Via)1 << (sizeof(Via) * 8 - 1));
        return (To)PYC_KEPT(v >= -top && v < top ? (Via)v : least);
    }
};
template <class To, class From> struct pyc_to_int<To, uint64_t, From> {
    static PYC_MEMBER To of(From v) { return (To)PYC_KEPT((uint64_t)v); }
};
template <class To, class Via, class From> PYC_INLINE To pyc_float_to_int(From v) { return pyc_to_int<To, Via, From>::of(v); }

// Rounds a float to the precision of bf16 or f16 and back (a `cast` to those types inside a body).
PYC_INLINE float pyc_round_bf16(float v) { return pyc_from_bf16(pyc_to_bf16(v)); }
PYC_INLINE float pyc_round_f16(float v) { return pyc_from_f16(pyc_to_f16(v)); }

// ---- integers ----------------------------------------------------------------------------------------------------

// A zero divisor sets *error to 2 and returns 0; the caller raises.  MIN / -1 wraps.
template <class T> PYC_INLINE T pyc_truncdiv(T a, T b, int64_t* error) {
    if (__builtin_expect(b == 0, 0)) { *error = 2; return 0; }
    return b == (T)-1 && (T)-1 < 0 ? (T)(0 - (uint64_t)a) : (T)(a / b);
}
template <class T> PYC_INLINE T pyc_fmod(T a, T b, int64_t* error) {
    if (__builtin_expect(b == 0, 0)) { *error = 2; return 0; }
    return b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b);
}
template <class T> PYC_INLINE T pyc_floordiv(T a, T b, int64_t* error) {
    T q = pyc_truncdiv(a, b, error), r = pyc_fmod(a, b, error);
    return (T)(q - (r != 0 && (r < 0) != (b < 0)));
}
template <class T> PYC_INLINE T pyc_mod(T a, T b, int64_t* error) {
    T r = pyc_fmod(a, b, error);
    return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}
PYC_INLINE int64_t pyc_floordiv_index(int64_t a, int64_t b) { int64_t q = a / b; return q - ((a % b) < 0); }
PYC_INLINE int64_t pyc_mod_index(int64_t a, int64_t b) { int64_t r = a % b; return r < 0 ? r + b : r; }
PYC_INLINE int64_t pyc_min_index(int64_t a, int64_t b) { return a < b ? a : b; }
PYC_INLINE int64_t pyc_max_index(int64_t a, int64_t b) { return a > b ? a : b; }

// One thread's share of n columns, in whole cache lines of floats.
PYC_INLINE int64_t pyc_share(int64_t n, int32_t threads) {
    int64_t parts = threads > 1 ? threads : 1, share = (n + parts - 1) / parts;
    return share < 16 ? (n < 16 ? n : 16) : (share + 15) / 16 * 16;
}

// Checks an indirect position against the storage's limit, so that no access is outside.
PYC_INLINE int64_t pyc_checked(int64_t at, int64_t limit, int64_t* error) {
    if (__builtin_expect((uint64_t)at >= (uint64_t)limit, 0)) { *error = 1; return 0; }
    return at;
}

// A function of one part of a graph.  gcc 12 takes some parts with an `omp for` for functions without effects, and removes
// their calls (`tests/codegen/test_compilers.py`): it may not analyse them for their callers.
#if defined(__clang__)
#define PYC_PART __attribute__((noinline))
#else
#define PYC_PART __attribute__((noipa))
#endif

// The error code of a user's index (see ir/plan.py: KernelErrors).  `site` has the rule's key, and the dimension above
// it.
static __attribute__((noinline, cold)) int64_t pyc_wrong_index(int64_t at, int64_t size, int32_t site) {
    const int64_t base = (int64_t)1 << 30;
    if (at < -base || at >= base || size >> 20) return site + 16;
    return site | size << 12 | (at + base) << 32;
}

// Checks a user's index into a dimension of `size` elements; pyc_wrap_index also accepts negative indices.  Only the
// first wrong index is reported.  (In a team, each thread starts with the least integer, which is no error.)
PYC_INLINE int64_t pyc_index(int64_t at, int64_t size, int32_t site, int64_t* error) {
    if (__builtin_expect((uint64_t)at >= (uint64_t)size, 0)) {
        if (*error <= 0) *error = pyc_wrong_index(at, size, site);
        return 0;
    }
    return at;
}
PYC_INLINE int64_t pyc_wrap_index(int64_t given, int64_t size, int32_t site, int64_t* error) {
    const int64_t at = given < 0 ? given + size : given;
    if (__builtin_expect((uint64_t)at >= (uint64_t)size, 0)) {
        if (*error <= 0) *error = pyc_wrong_index(given, size, site);
        return 0;
    }
    return at;
}

template <class T> PYC_INLINE T pyc_shl(T a, T b) {
    return (uint64_t)b >= sizeof(T) * 8 ? (T)0 : (T)((uint64_t)a << b);
}
template <class T> PYC_INLINE T pyc_shr(T a, T b) {
    return (uint64_t)b >= sizeof(T) * 8 ? (T)((T)-1 < 0 && a < 0 ? -1 : 0) : (T)(a >> b);
}
template <class T> PYC_INLINE T pyc_ipow(T base, T exponent) {
    if ((T)-1 < 0 && exponent < 0) return base == 1 ? (T)1 : base == (T)-1 ? (T)(exponent & 1 ? -1 : 1) : (T)0;
    uint64_t b = (uint64_t)base, r = 1;
    for (uint64_t e = (uint64_t)exponent; e; e >>= 1, b *= b) if (e & 1) r *= b;
    return (T)r;
}

#ifndef PYC_SMALL
#include "pyc_math.h"
#include "pyc_reduce.h"
#endif
