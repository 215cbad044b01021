"""Device memory that the ranks of a gang share: each allocates a buffer, and maps those of the others (CUDA IPC).

Custom all-reduces take plain pointers; torch's own sharing would map a peer's memory for the peer's device, where a
kernel of ours cannot reach it. So this speaks to the CUDA runtime that torch has loaded.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any, List, Optional

from .gang import Gang

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class SharedBuffer:
    """`pointers[rank]` is rank's buffer as this process sees it. Made and freed by all ranks together."""

    def __init__(self, gang: Gang, size: int) -> None:
        """Allocate `size` bytes on the current device of each rank, zeroed. Raises RuntimeError for what CUDA refuses."""
        self._gang = gang
        self._cuda = _runtime()
        own = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(own), ctypes.c_size_t(size))
        self._call("cudaMemset", own, ctypes.c_int(0), ctypes.c_size_t(size))
        self._call("cudaDeviceSynchronize")
        handle = _Handle()
        self._call("cudaIpcGetMemHandle", ctypes.byref(handle), own)
        self.pointers: List[int] = []
        for rank, text in enumerate(gang.every(bytes(handle).hex())):
            if rank == gang.rank:
                self.pointers.append(int(own.value or 0))
                continue
            peer, mapped = _Handle.from_buffer_copy(bytes.fromhex(text)), ctypes.c_void_p()
            self._call("cudaIpcOpenMemHandle", ctypes.byref(mapped), peer, ctypes.c_uint(_LAZY_PEER_ACCESS))
            self.pointers.append(int(mapped.value or 0))

    def free(self) -> None:
        """Unmap the others', then, when everyone has, free the own one."""
        for rank, pointer in enumerate(self.pointers):
            if rank != self._gang.rank:
                self._call("cudaIpcCloseMemHandle", ctypes.c_void_p(pointer))
        self._gang.barrier()
        self._call("cudaFree", ctypes.c_void_p(self.pointers[self._gang.rank]))
        self.pointers = []

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            describe = self._cuda.cudaGetErrorString
            describe.restype = ctypes.c_char_p
            raise RuntimeError("{}: {}".format(name, describe(code).decode("ascii", "replace")))


def _runtime() -> ctypes.CDLL:
    loaded = _loaded()
    problems = []
    for name in [loaded] if loaded else _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
    raise RuntimeError("the CUDA runtime cannot be loaded: {}".format(problems[0]))


def _loaded() -> Optional[str]:
    """The runtime in this process: another copy of it would not know torch's device."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                match = re.search(r"(/.*/libcudart(-[0-9a-f]+)?\.so[.0-9]*)$", line.strip())
                if match:
                    return match.group(1)
    except OSError:
        pass
    return None
