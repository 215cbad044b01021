"""What the harness does to inputs and outputs alike, whether they are numpy arrays, torch tensors or nests of them.

Anything else (numbers, strings, handles) passes through untouched. Neither library is imported unless a value is its own.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterator, List


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether this is a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def leaves(value: Any) -> Iterator[Any]:
    """Every array and tensor in a nest of tuples, lists and dicts."""
    if is_tensor(value) or is_array(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)


def convert(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest with every array and tensor replaced by `change` of it."""
    if is_tensor(value) or is_array(value):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(convert(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(convert(item, change) for item in value)
    if isinstance(value, dict):
        return {key: convert(item, change) for key, item in value.items()}
    return value


def clone(value: Any) -> Any:
    """A copy in memory of its own that keeps every shape and stride (a transposed view stays one)."""
    return convert(value, _clone_leaf)


def _clone_leaf(leaf: Any) -> Any:
    if is_tensor(leaf):
        import torch

        return leaf.clone(memory_format=torch.preserve_format)
    return leaf.copy(order="K")


def nbytes(value: Any) -> int:
    """Bytes of all arrays and tensors in the nest."""
    return sum(_leaf_bytes(leaf) for leaf in leaves(value))


def _leaf_bytes(leaf: Any) -> int:
    return int(leaf.numel() * leaf.element_size()) if is_tensor(leaf) else int(leaf.nbytes)


def poison(value: Any) -> None:
    """Fill every array so that what a call does not write is seen: floats with NaN (an 8-bit float's NaN where it has
    one), integers with their most extreme value. Booleans are left as they are."""
    for leaf in leaves(value):
        if is_tensor(leaf):
            _poison_tensor(leaf)
        elif leaf.dtype.kind == "f":
            leaf.fill(float("nan"))
        elif leaf.dtype.kind in "iu":
            import numpy as np

            leaf.fill(_extreme(np.iinfo(leaf.dtype)))


def _poison_tensor(leaf: Any) -> None:
    import torch

    if leaf.dtype == torch.bool or leaf.is_complex():
        return
    if leaf.element_size() == 1 and leaf.dtype != torch.int8:
        leaf.view(torch.uint8).fill_(255)
    elif leaf.is_floating_point():
        leaf.fill_(float("nan"))
    else:
        leaf.fill_(_extreme(torch.iinfo(leaf.dtype)))


def _extreme(info: Any) -> int:
    return int(info.min if info.min < 0 else info.max)


def row_chunks(value: Any, elements: int = 1 << 24) -> Iterator[Any]:
    """`value` as float64 slices of about `elements` elements along its first axis."""
    flat = value.reshape(1, -1) if value.ndim < 2 else value
    per_row = max(1, count(flat) // max(1, flat.shape[0]))
    step = max(1, elements // per_row)
    for start in range(0, flat.shape[0], step):
        part = flat[start : start + step]
        yield part.double() if is_tensor(part) else part.astype("float64")


def count(value: Any) -> int:
    """How many elements it has."""
    return int(value.numel()) if is_tensor(value) else int(value.size)


def sizes(value: Any) -> List[int]:
    """The shape as a list of ints."""
    return [int(n) for n in value.shape]


def like(value: Any, other: Any) -> Any:
    """`value` as the kind of array that `other` is, on the same device."""
    if is_tensor(other):
        import torch

        return (value if is_tensor(value) else torch.from_numpy(value)).to(other.device)
    if is_tensor(value):
        return value.detach().float().cpu().numpy()
    return value
