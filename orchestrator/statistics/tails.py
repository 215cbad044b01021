"""Student's t distribution, far into its tails: what a level of one in a million needs."""

from __future__ import annotations

import math

_TERMS = 300
_PRECISION = 1e-14


def t_tail(t: float, df: float) -> float:
    """P(T > |t|) of Student's t with `df` > 0 degrees of freedom (any real number; infinity is the normal).

    By the regularised incomplete beta function: P = I_x(df/2, 1/2) / 2 with x = df / (df + t²)
    (Abramowitz and Stegun 26.5.27).
    """
    t = abs(t)
    if math.isinf(df):
        return math.erfc(t / math.sqrt(2)) / 2
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(df / (df + t * t), df / 2, 0.5) / 2


def t_quantile(tail: float, df: float) -> float:
    """The t ≥ 0 with P(T > t) = `tail`, for 0 < `tail` ≤ 0.5; relative precision 1e-7."""
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        if t_tail(middle, df) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8), on the side where it converges fast."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), evaluated forwards by Lentz's method."""
    tiny = 1e-300
    fraction, c, d = 1.0, 1.0, 0.0
    for term in range(1, _TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / ((1.0 + factor * d) or tiny)
        c = (1.0 + factor / c) or tiny
        fraction *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return fraction
