"""What the harness does to inputs and outputs alike, whether they are numpy arrays, torch tensors or nests of them.

Anything else (numbers, strings, handles) passes through untouched. Neither library is imported unless a value is its own.
"""

from __future__ import annotations

import copy
import math
import sys
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether this is a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def leaves(value: Any) -> Iterator[Any]:
    """Every array and tensor in a nest of tuples, lists and dicts; of a sparse or nested tensor, and of one that is made of
    others (a weight and its scales), those that it consists of. Of torch's own quantised tensors none: they cannot be
    looked at bit by bit."""
    for whole_one in wholes(value):
        if is_tensor(whole_one):
            yield from _parts(whole_one)
        else:
            yield whole_one


def wholes(value: Any) -> Iterator[Any]:
    """As `leaves`, but each tensor as one, whatever it consists of; only a nested one is many."""
    if is_tensor(value) and getattr(value, "is_nested", False):
        for part in value.unbind():
            yield from wholes(part)
    elif is_tensor(value) or is_array(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from wholes(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from wholes(item)


def dense(value: Any) -> Any:
    """A sparse or quantised tensor as the numbers that it stands for; anything else as it is."""
    if not is_tensor(value):
        return value
    import torch

    if value.is_quantized:
        return value.dequantize()
    return value if value.layout == torch.strided else value.to_dense()


def _made_of(tensor: Any) -> List[str]:
    """Names of the tensors that one of a library's own kind is made of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return list(flatten()[0]) if flatten is not None else []


def _parts(tensor: Any) -> Iterator[Any]:
    import torch

    names = _made_of(tensor)
    if names:
        for name in names:
            yield from _parts(getattr(tensor, name))
    elif tensor.is_quantized:
        return
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def is_module(value: Any) -> bool:
    """Whether this is a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def holds_modules(value: Any) -> bool:
    """Whether a nest has a torch module in it, whose weights nobody sees from outside."""
    if isinstance(value, (tuple, list)):
        return any(map(holds_modules, value))
    if isinstance(value, dict):
        return any(map(holds_modules, value.values()))
    return is_module(value)


def unmovable(value: Any, least: float) -> Optional[str]:
    """The kind of something in a nest that holds `least` bytes of data or more, and of which a `clone` is no copy: bytes, a
    data frame, an array of a third library. None where there is nothing of the sort."""
    if is_tensor(value) or is_array(value):
        return None
    if isinstance(value, (tuple, list)):
        return next(filter(None, (unmovable(item, least) for item in value)), None)
    if isinstance(value, dict):
        return next(filter(None, (unmovable(item, least) for item in value.values())), None)
    return type(value).__name__ if _data_bytes(value) >= max(1.0, least) else None


_DATA_PROTOCOLS = (
    "__array_interface__",
    "__cuda_array_interface__",
    "__dlpack__",
    "__dataframe__",
    "__array__",
)


def _data_bytes(value: Any) -> float:
    """Bytes of an object's data, as far as it shows them; without end where it only shows that there are some."""
    if value is None or isinstance(value, (bool, int, float, complex, str, type)):
        return 0
    try:
        return memoryview(value).nbytes
    except (TypeError, ValueError, BufferError):
        pass
    if not any(hasattr(type(value), name) for name in _DATA_PROTOCOLS):
        return 0
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else math.inf


def convert(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest with every array and tensor replaced by `change` of it."""
    if is_tensor(value) or is_array(value):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(convert(item, change) for item in value))
    if type(value) in (tuple, list):
        return type(value)(convert(item, change) for item in value)
    if type(value) is dict:
        return {key: convert(item, change) for key, item in value.items()}
    if isinstance(value, (list, dict)):
        # Of a user's own kind: a copy of it keeps whatever else it has.
        nest = copy.copy(value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            nest[key] = convert(item, change)
        return nest
    if isinstance(value, tuple):
        return type(value)(convert(item, change) for item in value)
    return value


def clone(value: Any) -> Any:
    """A copy in memory of its own that keeps every shape and stride: a transposed view stays one, a slice of a larger array
    keeps its gaps, an expanded one its repetitions."""
    return convert(value, _clone_leaf)


def _clone_leaf(leaf: Any) -> Any:
    return _clone_tensor(leaf) if is_tensor(leaf) else _clone_array(leaf)


def _clone_tensor(leaf: Any) -> Any:
    import torch

    if _made_of(leaf) and not getattr(leaf, "is_nested", False):
        names, context = leaf.__tensor_flatten__()
        parts = {name: _clone_tensor(getattr(leaf, name)) for name in names}
        return type(leaf).__tensor_unflatten__(parts, context, leaf.shape, leaf.stride())
    source = leaf.detach()
    if leaf.layout != torch.strided or leaf.is_quantized or getattr(leaf, "is_nested", False):
        copy = source.clone()
    elif _is_dense(leaf.shape, leaf.stride(), 1) or leaf.is_conj() or leaf.is_neg() or not leaf.numel():
        copy = source.clone(memory_format=torch.preserve_format)
    else:
        copy = flat(source).clone().as_strided(leaf.shape, leaf.stride(), 0)
    return copy.requires_grad_() if leaf.requires_grad else copy


def _clone_array(leaf: Any) -> Any:
    if _is_dense(leaf.shape, leaf.strides, leaf.itemsize) or leaf.dtype.hasobject or not leaf.size:
        return leaf.copy(order="K")
    import ctypes

    import numpy as np

    _, low, high = _span(leaf)
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low)).copy()
    offset = int(leaf.__array_interface__["data"][0]) - low
    return np.ndarray(leaf.shape, leaf.dtype, raw, offset, leaf.strides)


def _is_dense(shape: Any, strides: Any, unit: int) -> bool:
    """Whether every element has a place of its own and none is left empty between them."""
    expected = unit
    for stride, length in sorted((stride, length) for stride, length in zip(strides, shape) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def span_bytes(value: Any) -> int:
    """Bytes that a `clone` of the nest takes, gaps included."""
    return sum(end - start for _, start, end in map(_span, leaves(value)))


def nbytes(value: Any) -> int:
    """Bytes of all arrays and tensors in the nest."""
    return sum(_leaf_bytes(leaf) for leaf in leaves(value))


def _leaf_bytes(leaf: Any) -> int:
    return int(leaf.numel() * leaf.element_size()) if is_tensor(leaf) else int(leaf.nbytes)


def same(one: Any, other: Any) -> bool:
    """Whether a nest and its `clone` still hold the same arrays, bit by bit (a NaN is itself)."""
    ones, others = list(leaves(one)), list(leaves(other))
    return len(ones) == len(others) and all(map(_same_leaf, ones, others))


def _same_leaf(one: Any, other: Any) -> bool:
    if is_tensor(one):
        import torch

        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size())
        if bits is not None and not one.is_conj() and not one.is_neg():
            one, other = one.detach().view(bits), other.detach().view(bits)
        return bool(torch.equal(one, other))
    import numpy as np

    if one.dtype.kind in "fiub":
        whole = "u{}".format(one.dtype.itemsize)
        if one.dtype.itemsize in (1, 2, 4, 8):
            one, other = one.view(whole), other.view(whole)
    return bool(np.array_equal(one, other))


def overlap(one: Any, other: Any) -> bool:
    """Whether an array of one nest lies, at least in part, where one of the other does."""
    spans = [_span(leaf) for leaf in leaves(other)]
    return any(
        kind == other_kind and start < other_end and other_start < end
        for kind, start, end in map(_span, leaves(one))
        for other_kind, other_start, other_end in spans
    )


def place(leaf: Any) -> Tuple[str, int, int]:
    """Where an array lies: what of two arrays is the same where they share all of their memory."""
    return _span(leaf)


def devices(value: Any) -> Set[str]:
    """The kinds of device that the nest's arrays lie on: `cpu`, `cuda`."""
    return {leaf.device.type if is_tensor(leaf) else "cpu" for leaf in leaves(value)}


def _span(leaf: Any) -> Tuple[str, int, int]:
    """(where, first byte, last byte + 1); of an empty array, no bytes."""
    if not is_tensor(leaf):
        low = high = int(leaf.__array_interface__["data"][0])
        if not leaf.size:
            return "cpu", 0, 0
        for length, stride in zip(leaf.shape, leaf.strides):
            low, high = low + min(0, (length - 1) * stride), high + max(0, (length - 1) * stride)
        return "cpu", low, high + int(leaf.itemsize)
    if not leaf.numel():
        return str(leaf.device), 0, 0
    start = int(leaf.data_ptr())
    last = sum((length - 1) * stride for length, stride in zip(leaf.shape, leaf.stride()))
    return str(leaf.device), start, start + (last + 1) * int(leaf.element_size())


def is_number(leaf: Any) -> bool:
    """Whether an array holds numbers or codes of them, and no indices (whole numbers of 32 and 64 bits)."""
    if is_floating(leaf):
        return True
    if is_tensor(leaf):
        return int(leaf.element_size()) <= 2
    return leaf.dtype.kind in "iub" and leaf.dtype.itemsize <= 2


def is_floating(leaf: Any) -> bool:
    """Whether an array holds floating-point or complex numbers."""
    if is_tensor(leaf):
        return bool(leaf.is_floating_point() or leaf.is_complex())
    return leaf.dtype.kind in "fc"


def unlike(leaf: Any, other: Any) -> Any:
    """Where two arrays of one shape are not equal (where either is NaN, too), as booleans of their kind."""
    if is_tensor(leaf):
        leaf, other = leaf.detach(), other.detach()
        if leaf.is_floating_point() and leaf.element_size() == 1:
            leaf, other = leaf.float(), other.float()
    return leaf != other


def flat(tensor: Any) -> Any:
    """The memory of a tensor from its first element to its last one."""
    span = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided((span if tensor.numel() else 0,), (1,), tensor.storage_offset())


def count(value: Any) -> int:
    """How many elements it has."""
    return int(value.numel()) if is_tensor(value) else int(value.size)
