"""Writing over arrays: with zeros, with what must not stay, with what was there before.

A tensor counts its changes; all but `poison` leave no trace of that kind.
"""

from __future__ import annotations

from typing import Any

from . import arrays


def zero(leaf: Any) -> None:
    """Fill one array with zeros, and leave no trace of that but the zeros (a tensor counts its changes)."""
    if arrays.is_tensor(leaf):
        import torch

        with torch.inference_mode(leaf.is_inference()):  # such a tensor may be changed nowhere else
            flat = arrays.flat(leaf.data)
            (flat.view(torch.uint8) if leaf.element_size() == 1 else flat).zero_()
    else:
        leaf.fill(0)


def zero_where(leaf: Any, where: Any) -> None:
    """`zero` of a part of an array; of all of it where elements share memory."""
    if not arrays.is_tensor(leaf):
        leaf[where] = 0
    elif any(stride == 0 and length > 1 for length, stride in zip(leaf.shape, leaf.stride())):
        zero(leaf)
    else:
        import torch

        with torch.inference_mode(leaf.is_inference()):
            leaf.data.copy_(torch.where(where, torch.zeros_like(leaf.data), leaf.data))


def spoil(leaf: Any) -> None:
    """`poison` one array, and leave no trace of that either."""
    poison(leaf.data if arrays.is_tensor(leaf) else leaf)


def refill(leaf: Any, original: Any) -> None:
    """Give one array of a clone its first content again."""
    if arrays.is_tensor(leaf):
        import torch

        with torch.inference_mode(leaf.is_inference()):
            arrays.flat(leaf.data).copy_(arrays.flat(original.data))
    else:
        leaf[...] = original


def poison(value: Any) -> None:
    """Fill every array so that what a call does not write is seen: floats with NaN (an 8-bit float's NaN where it has
    one), integers with their most extreme value, booleans at random. What cannot be written to is left as it is."""
    for leaf in arrays.leaves(value):
        if arrays.is_tensor(leaf):
            _poison_tensor(leaf)
        elif not leaf.flags.writeable:
            continue
        else:
            _poison_array(leaf)


def _poison_array(leaf: Any) -> None:
    import numpy as np

    kind = leaf.dtype.kind
    if leaf.dtype.names:
        for name in leaf.dtype.names:
            _poison_array(leaf[name])
    elif kind in "fc":
        leaf.fill(float("nan"))
    elif kind == "b":
        leaf[...] = np.random.default_rng(0).integers(0, 2, leaf.shape, dtype=np.uint8)
    elif kind in "iu":
        leaf.fill(_extreme(np.iinfo(leaf.dtype)))
    elif kind in "mM":
        leaf.fill(np.array("NaT", leaf.dtype))
    elif kind == "O":
        leaf.fill(None)
    elif (
        kind == "V" and leaf.dtype.itemsize
    ):  # 16-bit and 8-bit floats of other packages: all bits make a NaN of most of them
        leaf[...] = np.frombuffer(b"\xff" * leaf.dtype.itemsize, leaf.dtype)[0]


def _poison_tensor(leaf: Any) -> None:
    import torch

    if any(stride == 0 and length > 1 for length, stride in zip(leaf.shape, leaf.stride())):
        return  # an expanded view: several elements share their memory
    with torch.inference_mode(leaf.is_inference()), torch.no_grad():
        if leaf.dtype == torch.bool:
            # By a hash of the position: torch's own random numbers belong to the payload.
            position = torch.arange(leaf.numel(), device=leaf.device).reshape(leaf.shape)
            leaf.copy_((position * 2654435761 >> 16) & 1)
        elif leaf.element_size() == 1 and leaf.dtype != torch.int8:
            leaf.view(torch.uint8).fill_(255)
        elif leaf.is_floating_point() or leaf.is_complex():
            leaf.fill_(float("nan"))
        else:
            leaf.fill_(_extreme(torch.iinfo(leaf.dtype)))


def _extreme(info: Any) -> int:
    return int(info.min if info.min < 0 else info.max)
