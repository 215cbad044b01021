"""Which experts get how many rows: a mixture-of-experts layer's routing, drawn from a seed or read from a file.

| `routing`   | each token's `top_k` experts                                                                          |
|-------------|-------------------------------------------------------------------------------------------------------|
| `uniform`   | all equally likely; few tokens leave experts idle: (1 − top_k/experts)^tokens of them, on average       |
| `zipf`      | the expert of rank r with weight 1 / r^`zipf_exponent`, ranks shuffled among the experts                |
| `balanced`  | every expert the same number of rows, or one more                                                     |
| `file:PATH` | as measured: a JSON list of rows for each expert, or of the expert ids of each token                    |

A file must have as many tokens and rows as `tokens` and `top_k` say, since these name the case in every table.

Experts of one token are distinct: a draw without replacement, by the Gumbel top-k trick (Kool, van Hoof, Welling: Stochastic
Beams and Where to Find Them, 2019, section 2.2).
"""

from __future__ import annotations

import json
import os
from typing import Any, List

KINDS = ("uniform", "zipf", "balanced")

# So many random numbers are drawn at a time.
_DRAWN_AT_ONCE = 1 << 22


def rows_of_experts(
    routing: str, tokens: int, experts: int, top_k: int, seed: int = 0, zipf_exponent: float = 1.0
) -> List[int]:
    """Rows of each expert, `experts` numbers. Raises ValueError, and OSError for a file that cannot be read."""
    kind, _, path = routing.partition(":")
    if kind == "file" and path:
        return _from_file(os.path.expanduser(path), tokens, experts, top_k)
    if routing not in KINDS:
        raise ValueError("routing is {!r}: known are {} and file:PATH".format(routing, ", ".join(KINDS)))
    if min(tokens, experts, top_k) < 1 or top_k > experts:
        raise ValueError("tokens, experts and top_k must be positive, and top_k at most experts")
    if routing == "balanced":
        whole, rest = divmod(tokens * top_k, experts)
        return [whole + (expert < rest) for expert in range(experts)]
    return _drawn(tokens, experts, top_k, seed, zipf_exponent if routing == "zipf" else 0.0)


def _drawn(tokens: int, experts: int, top_k: int, seed: int, exponent: float) -> List[int]:
    import numpy as np

    random = np.random.default_rng(seed)
    ranks = random.permutation(experts) + 1
    preference = -exponent * np.log(ranks)
    counts = np.zeros(experts, np.int64)
    step = max(1, _DRAWN_AT_ONCE // experts)
    for start in range(0, tokens, step):
        noise = random.gumbel(size=(min(step, tokens - start), experts))
        chosen = np.argpartition(-(preference + noise), top_k - 1, axis=1)[:, :top_k]
        counts += np.bincount(chosen.ravel(), minlength=experts)
    return [int(count) for count in counts]


def _from_file(path: str, tokens: int, experts: int, top_k: int) -> List[int]:
    with open(path, encoding="utf-8") as file:
        try:
            found: Any = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError("{} is no JSON: {}".format(path, error)) from None
    if isinstance(found, list) and found and all(isinstance(row, list) for row in found):
        counts = [0] * experts
        for token in found:
            if len(set(map(str, token))) < len(token):
                raise ValueError("{}: a token has an expert twice: {}".format(path, token))
            for expert in token:
                if not _is_count(expert) or expert >= experts:
                    raise ValueError("{}: {!r} is none of {} experts".format(path, expert, experts))
                counts[expert] += 1
        if not sum(counts):
            raise ValueError("{}: no token has an expert".format(path))
        if len(found) != tokens:
            raise ValueError("{} has {} tokens, and the case says tokens={}".format(path, len(found), tokens))
        for number, token in enumerate(found):
            if len(token) != top_k:
                raise ValueError(
                    "{}: token {} has {} experts, and the case says top_k={}".format(
                        path, number, len(token), top_k
                    )
                )
        return counts
    if (
        not isinstance(found, list)
        or len(found) != experts
        or not all(map(_is_count, found))
        or not sum(found)
    ):
        raise ValueError(
            "{} is no list of rows for {} experts, and none of tokens' experts".format(path, experts)
        )
    if sum(found) != tokens * top_k:
        raise ValueError(
            "{} has {} rows, and the case says tokens={} top_k={}, which makes {}".format(
                path, sum(found), tokens, top_k, tokens * top_k
            )
        )
    if max(found) > tokens:
        raise ValueError(
            "{}: an expert has {} rows, and the case says tokens={}".format(path, max(found), tokens)
        )
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
