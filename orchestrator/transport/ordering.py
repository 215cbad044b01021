"""The order of what is said on a channel: nothing of ours after our CLOSE, and what the host said at its end.

paramiko decides under a channel's lock what to send, and sends it afterwards. So a thread that writes, or gives room for more
output, can be overtaken by the thread that answers the host's CLOSE; servers end the whole connection for what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paramiko import common
from paramiko.message import Message


@dataclass
class Ending:
    """What the host said of a command. Neither `eof` nor `closed`: it did not end it, the link broke."""

    answered: bool = False
    """It took the request, or declined it."""
    eof: bool = False
    closed: bool = False
    refused: bool = False
    signal: str | None = None


class Voice:
    """What a channel takes for its transport: hands everything on, but marks what is sent as the channel's."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._said_close = False
        self.ending = Ending()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def _send_user_message(self, message: Message) -> None:
        message.voice = self  # type: ignore[attr-defined]
        self._session._send_user_message(message)

    def lets_out(self, message: Message) -> bool:
        """Whether `message` may still be sent; asked by the one thread that is sending."""
        if self._said_close:
            return False
        self._said_close = bytes(message.packet.getbuffer()[:1]) == common.cMSG_CHANNEL_CLOSE
        return True
