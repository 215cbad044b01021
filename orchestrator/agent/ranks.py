"""What makes the workers of a gang ranks of one process group."""

from __future__ import annotations

import socket
from typing import Dict, List, Tuple


def variables(size: int) -> List[Dict[str, str]]:
    """For each rank what torch.distributed reads; every rank sees all of the gang's devices, as under torchrun."""
    port = _free_port()
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for rank in range(size)
    ]


def port_of_case(size: int) -> Dict[str, int]:
    """What the ranks of a gang are told with each case: another port than the last case's, which may linger."""
    return {"port": _free_port()} if size > 1 else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Tuple[str, int] = probe.getsockname()
        return port[1]
