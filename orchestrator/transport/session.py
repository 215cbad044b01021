"""paramiko's Transport with what it leaves out: exit signals, answered keepalives, and why a channel ended."""

from __future__ import annotations

import logging
from typing import Any

import paramiko
from paramiko import common
from paramiko.channel import Channel
from paramiko.message import Message

from orchestrator.transport.channels import Channels
from orchestrator.transport.lanes import Turns
from orchestrator.transport.link import Link, LinkSilent
from orchestrator.transport.ordering import Ending, Voice

# paramiko logs tracebacks of ordinary refusals; without a handler Python prints them. Every cause ends in a HostError here.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

WINDOW_BYTES = 8 * 1024 * 1024
"""What may be on its way on one channel: 80 MB/s over a round trip of 100 ms (paramiko's 2 MiB: 20 MB/s)."""
MAX_PACKET_BYTES = 1024 * 1024
"""Many times what a host may send us: a length beyond it is wrong, and would be waited for in vain."""
_FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_CERTIFICATE_ALGORITHMS = (
    "ssh-ed25519-cert-v01@openssh.com", "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com", "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com", "rsa-sha2-256-cert-v01@openssh.com",
)  # fmt: skip


def plain(text: str, limit: int = 300) -> str:
    """What a server said, fit for a terminal: without control characters, and short."""
    return "".join(char if char.isprintable() else "?" for char in text)[:limit]


class Session(paramiko.Transport):
    """One SSH connection over a `Link`."""

    def __init__(self, link: Link, host: str, **options: Any) -> None:
        super().__init__(link, default_window_size=WINDOW_BYTES, **options)  # type: ignore[arg-type]
        self.link = link
        self.channels = Channels(host)
        self.host_key_blob = b""
        """The host key (or certificate) as it travelled."""
        self.farewell: str | None = None
        """The message with which the host disconnected."""
        self.turns = Turns()
        self.was_silent = False
        """Whether the time for the banner has passed."""
        self.preamble: list[str] = []
        """The lines that came where the banner should."""
        self._read_line = self.packetizer.readline
        self.packetizer.readline = self._read_remembered  # type: ignore[method-assign, unused-ignore]
        self._read_all = self.packetizer.read_all
        self.packetizer.read_all = self._read_bounded  # type: ignore[assignment, method-assign, unused-ignore]
        ciphers = self.get_security_options().ciphers
        fast = [cipher for cipher in _FAST_CIPHERS if cipher in ciphers]
        self.get_security_options().ciphers = (*fast, *(cipher for cipher in ciphers if cipher not in fast))
        self._channel_handler_table: dict[int, Any] = {
            **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
            common.MSG_CHANNEL_REQUEST: self._on_request,
            common.MSG_CHANNEL_SUCCESS: self._on_success,
            common.MSG_CHANNEL_FAILURE: self._on_failure,
            common.MSG_CHANNEL_EOF: self._on_eof,
            common.MSG_CHANNEL_CLOSE: self._on_close,
        }
        self._handler_table[common.MSG_CHANNEL_OPEN_SUCCESS] = self._on_opened  # type: ignore[attr-defined]

    def why_broken(self, error: BaseException | None = None) -> str:
        """Why the connection is gone, in words: errors of a reader often come without any."""
        known = (self.farewell, error, self.get_exception())
        return next(
            (text for text in map(str, filter(None, known)) if text.strip()), "the connection was closed"
        )

    def prefer_host_keys(self, key_types: list[str], *, certificates: bool) -> None:
        """Ask first for host keys of the types that are known of the host, so that it shows one that can be checked."""
        options = self.get_security_options()
        wanted = list(_CERTIFICATE_ALGORITHMS) if certificates else []
        for kind in key_types:
            wanted += ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]
        possible = [*options.key_types, *_CERTIFICATE_ALGORITHMS]
        wanted = [kind for kind in dict.fromkeys(wanted) if kind in possible]
        options.key_types = (*wanted, *(kind for kind in options.key_types if kind not in wanted))

    @property
    def step(self) -> str:
        """The step that the handshake has reached, for messages."""
        if not self.remote_version:
            return "banner"
        return "key exchange" if not self.initial_kex_done else "authentication"

    def keep_alive(self, interval_s: float, silence_s: float) -> None:
        """Ask for a sign of life when idle, and end the link when none comes (paramiko's own keepalive asks for none)."""
        self.link.watch(silence_s)
        self.packetizer.set_keepalive(interval_s, self._ask_for_life)  # type: ignore[no-untyped-call, unused-ignore]

    def send_request(self, channel: Channel, kind: str, argument: str) -> Ending:
        """Send a channel request whose reply is not waited for, so that data can follow at once.

        Returns what the host will have said at the channel's end; if it declines, the channel is closed and that says
        `refused`."""
        message = Message()
        message.add_byte(common.cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string(kind)
        message.add_boolean(True)
        message.add_string(argument)
        channel.transport._send_user_message(message)  # type: ignore[union-attr]
        return self._ending(channel)

    def _send_message(self, message: Message) -> None:
        voice: Voice | None = getattr(message, "voice", None)
        if voice is None or voice.lets_out(message):
            super()._send_message(message)  # type: ignore[misc]

    def _ask_for_life(self) -> None:
        # Called in the reading thread, which must not wait for a key exchange that it has to answer itself.
        if not self.authenticated or not self.clear_to_send.is_set():
            return
        message = Message()
        message.add_byte(common.cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        self._send_message(message)

    def _read_remembered(self, timeout: float) -> str:
        line: str = self._read_line(timeout)  # type: ignore[no-untyped-call, unused-ignore]
        self.preamble.append(line)
        return line

    def _read_bounded(self, n: int, check_rekey: bool = False) -> bytes:
        if n > MAX_PACKET_BYTES:
            raise paramiko.SSHException(f"a packet of {n} bytes, which no host sends")
        return self._read_all(n, check_rekey)  # type: ignore[no-untyped-call, unused-ignore]

    def _check_banner(self) -> None:
        # paramiko bounds each line of a banner, and of the key exchange only the first packet.
        self.link.allow(self.banner_timeout)
        try:
            super()._check_banner()  # type: ignore[misc]
        except paramiko.SSHException as error:  # says nothing of how it came to that
            self.was_silent = isinstance(error.__context__, TimeoutError | LinkSilent)
            raise
        self.link.allow(self.handshake_timeout)

    def _parse_newkeys(self, message: Message) -> None:
        super()._parse_newkeys(message)  # type: ignore[misc]
        self.link.allow(None)

    def _ending(self, channel: Any) -> Ending:
        return channel.transport.ending if isinstance(channel.transport, Voice) else Ending()

    def _on_opened(self, message: Message) -> None:
        start = message.packet.tell()
        channel = self._channels.get(message.get_int())  # type: ignore[attr-defined]
        message.packet.seek(start)
        if channel is not None:
            channel.transport = Voice(self)
        self._parse_channel_open_success(message)  # type: ignore[attr-defined]

    def _on_request(self, channel: Any, message: Message) -> None:
        start = message.packet.tell()
        kind = message.get_text()
        if kind.startswith("exit-"):
            self._ending(channel).answered = True
        if kind == "exit-signal":
            message.get_boolean()
            self._ending(channel).signal = plain(message.get_text(), 40)
            channel.status_event.set()
            return
        message.packet.seek(start)
        channel._handle_request(message)

    def _on_success(self, channel: Any, message: Message) -> None:
        self._ending(channel).answered = True
        channel._request_success(message)

    def _on_failure(self, channel: Any, message: Message) -> None:
        self._ending(channel).answered = self._ending(channel).refused = True
        channel._request_failed(message)

    def _on_eof(self, channel: Any, message: Message) -> None:
        self._ending(channel).eof = True
        channel._handle_eof(message)

    def _on_close(self, channel: Any, message: Message) -> None:
        self._ending(channel).closed = True
        channel._handle_close(message)
        self.turns.give_back()
        self.channels.ended()

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        self.host_key_blob = host_key
        super()._verify_key(host_key, sig)  # type: ignore[misc, unused-ignore]

    def _parse_disconnect(self, m: Message) -> None:
        m.get_int()
        self.farewell = plain(m.get_text())
