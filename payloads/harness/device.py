"""The device that this process measures on, as a value that is handed down."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import Optional, Tuple

from . import cuda
from .gang import SOLO, Gang


@dataclass(frozen=True)
class Device:
    """`torch_device` is where tensors are made ("cpu" or "cuda:0"); `capability` is None where there is no GPU.

    `absent` says why there is no GPU, for the reason of what needs one. `gang` is what this process is a rank of.
    """

    name: str = "cpu"
    capability: Optional[Tuple[int, int]] = None
    torch_device: str = "cpu"
    absent: str = "no CUDA device"
    gang: Gang = SOLO

    @property
    def is_gpu(self) -> bool:
        """Whether calls run on a GPU, asynchronously."""
        return self.torch_device != "cpu"

    @property
    def sm(self) -> str:
        """The capability as in `sm_90`."""
        return "no GPU" if self.capability is None else "sm_{}{}".format(*self.capability)

    def synchronize(self) -> None:
        """Wait for all work on the device. Raises what the work raised."""
        if self.is_gpu:
            cuda.synchronize()

    def alive(self) -> bool:
        """Prove by a tiny kernel that the device still computes in this process."""
        return cuda.alive(self.torch_device) if self.is_gpu else True

    def release_memory(self) -> None:
        """Give cached memory back, so that the next case does not find it in pieces."""
        if self.is_gpu:
            cuda.release_memory()


def detect(use_torch: bool, gang: Gang = SOLO) -> Device:
    """The first visible GPU (of a gang: this rank's) if torch is wanted, installed and sees one, else the CPU.

    Imports torch if so."""
    if not use_torch:
        return Device(gang=gang)
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        return Device(gang=gang)
    try:
        found = cuda.describe(gang.local_rank)
    except Exception as error:  # noqa: BLE001 - a torch that does not load: its backends will say so
        said = str(error).strip().splitlines() or [type(error).__name__]
        return Device(absent="torch does not load: {}".format(said[0]), gang=gang)
    if found is None:
        return Device(gang=gang)
    name, capability = found
    cuda.select(gang.local_rank)
    return Device(name, capability, "cuda:{}".format(gang.local_rank), gang=gang)
