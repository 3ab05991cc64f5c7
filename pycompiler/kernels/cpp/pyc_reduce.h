// Reductions: initial values, and functions that combine two partial results.
#pragma once

// Mean and sum of squared distances of n values (Chan et al.).  pyc_combine joins the results of two disjoint sets.
template <class T> struct pyc_welford { T mean, m2; double n; };
template <class T> PYC_INLINE pyc_welford<T> pyc_combine(pyc_welford<T> a, pyc_welford<T> b) {
    double n = a.n + b.n;
    if (b.n == 0.0) return a;
    if (a.n == 0.0) return b;
    T delta = b.mean - a.mean, share = (T)(b.n / n);
    return pyc_welford<T>{a.mean + delta * share, a.m2 + b.m2 + delta * delta * (T)(a.n) * share, n};
}

// Adds a double; `low` collects the rounding errors (Knuth's two-sum).  For an infinite sum, `low` is ignored.
PYC_INLINE void pyc_add_exactly(double& sum, double& low, double value) {
    double s = sum + value, part = s - sum;
    low += (sum - (s - part)) + (value - part);
    sum = s;
}
PYC_INLINE double pyc_exact_sum(double sum, double low) { return sum - sum == 0.0 ? sum + low : sum; }

// Value and first position of an extremum.  A NaN wins over every number.
template <class T> struct pyc_arg { T value; int64_t at; };
template <class T> PYC_INLINE bool pyc_arg_before_max(T v, int64_t at, T best, int64_t best_at) {
    bool nan = v != v, best_nan = best != best;
    return nan != best_nan ? nan : (nan || v == best) ? at < best_at : v > best;
}
template <class T> PYC_INLINE bool pyc_arg_before_min(T v, int64_t at, T best, int64_t best_at) {
    bool nan = v != v, best_nan = best != best;
    return nan != best_nan ? nan : (nan || v == best) ? at < best_at : v < best;
}
template <class T> PYC_INLINE pyc_arg<T> pyc_argmax(pyc_arg<T> a, pyc_arg<T> b) {
    return pyc_arg_before_max(b.value, b.at, a.value, a.at) ? b : a;
}
template <class T> PYC_INLINE pyc_arg<T> pyc_argmin(pyc_arg<T> a, pyc_arg<T> b) {
    return pyc_arg_before_min(b.value, b.at, a.value, a.at) ? b : a;
}
