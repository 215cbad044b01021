"""The ssh agent: one connection to it for all hosts, and logging in with a key that it holds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.auth_handler import AuthHandler
from paramiko.common import MSG_USERAUTH_PK_OK, cMSG_USERAUTH_REQUEST
from paramiko.message import Message

if TYPE_CHECKING:
    from orchestrator.transport.session import Session

AGENT_TIMEOUT_S = 60
"""An agent may wait for a person to touch a hardware key."""
TELL_AFTER_S = 0.5
"""Who signs without asking anybody is faster."""
_SERVICE = "ssh-connection"
_POLL_S = 0.1


class Agent(AgentSSH):  # type: ignore[misc, unused-ignore]  # untyped upstream
    """One connection to an agent, used by many hosts' threads: a question and its answer must not be interleaved."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._turn = threading.Lock()
        self._line: socket.socket | None = None
        self._connect(None)  # type: ignore[attr-defined]

    def _send_message(self, msg: object) -> object:
        with self._turn:
            if self._line is None:
                self._line = self._conn = self._dial()
            try:
                return super()._send_message(msg)  # type: ignore[misc, unused-ignore]
            except BaseException:
                self._hang_up()  # its answer may still come, and would be taken for that to the next question
                raise

    def _dial(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AGENT_TIMEOUT_S)
        try:
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    def get_keys(self) -> tuple[AgentKey, ...]:
        """The keys that the agent listed when it was first asked."""
        return tuple(super().get_keys())

    def hang_up(self) -> None:
        """Close the connection; who waits for an answer gets none."""
        if (line := self._line) is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        if self._turn.acquire(blocking=False):  # else whoever waits closes it
            self._hang_up()
            self._turn.release()


class AgentLogin(AuthHandler):
    """A login with a key of an agent, which is asked to sign only when the host has said that it would take the key.

    paramiko alone would let it sign for every key that it offers, though each may cost a person a touch or an answer; and
    a refusal of the agent would cost the connection.
    """

    def __init__(self, session: Session, user: str, key: AgentKey, waiting: Callable[[], None]) -> None:
        """`waiting` is called when the agent does not sign at once: it may wait for the person."""
        super().__init__(session)
        self._session = session
        self._user = user
        self._key = key
        self._waiting = waiting
        self._answered = threading.Event()
        self._is_welcome = False

    def log_in(self) -> list[str]:
        """As paramiko's `auth_publickey`, with its exceptions; `AgentRefused` where the agent does not sign."""
        self._session.auth_handler = self
        self.auth_publickey(self._user, self._key, self._answered)
        try:
            return list(self.wait_for_response(self._answered))
        except paramiko.AuthenticationException:
            if not self._is_welcome:
                raise
        request = self._request(signed=True)
        request.add_string(self._signature(request))
        self.username = self._user
        self._answered.clear()
        self._session._send_message(request)
        return list(self.wait_for_response(self._answered))

    @property
    def _client_handler_table(self) -> dict[int, Callable[[Message], None]]:
        table = super()._client_handler_table  # type: ignore[misc]
        return {**table, MSG_USERAUTH_PK_OK: self._on_welcome}

    def _parse_service_accept(self, m: Message) -> None:
        try:
            question = self._request(signed=False)
        except (
            paramiko.SSHException
        ) as error:  # raised here, in the reading thread, it would end the connection
            self._session.saved_exception = error
            self._answered.set()
        else:
            self._session._send_message(question)

    def _on_welcome(self, m: Message) -> None:
        self._is_welcome = True
        self._answered.set()

    @property
    def _algorithm(self) -> str:
        kind, _ = self._get_key_type_and_bits(self._key)  # type: ignore[attr-defined]
        algorithm: str = self._finalize_pubkey_algorithm(kind)  # type: ignore[attr-defined]
        return algorithm

    def _request(self, *, signed: bool) -> Message:
        """The question whether the key would do; or the login itself, to which only the signature is missing."""
        _, blob = self._get_key_type_and_bits(self._key)  # type: ignore[attr-defined]
        message = Message()
        message.add_byte(cMSG_USERAUTH_REQUEST)
        message.add_string(self._user)
        message.add_string(_SERVICE)
        message.add_string("publickey")
        message.add_boolean(signed)
        message.add_string(self._algorithm)
        message.add_string(blob)
        return message

    def _signature(self, request: Message) -> bytes:
        """What the agent signs is the session's id and the request. In a thread, so that a login that is given up ends."""
        data = Message()
        data.add_string(self._session.session_id)  # type: ignore[arg-type]
        text, algorithm = data.asbytes() + request.asbytes(), self._algorithm
        made: list[bytes] = []
        problem: list[Exception] = []

        def sign() -> None:
            try:
                made.append(self._key.sign_ssh_data(text, algorithm))  # type: ignore[arg-type]
            except (OSError, paramiko.SSHException, ValueError) as error:
                problem.append(error)

        signing = threading.Thread(target=sign, name="agent", daemon=True)
        signing.start()
        signing.join(TELL_AFTER_S)
        if signing.is_alive():
            self._waiting()
        while signing.is_alive():
            signing.join(_POLL_S)
            if not self._session.is_active():
                raise paramiko.SSHException("the connection was closed while the agent was asked to sign")
        if made:
            return made[0]
        late = bool(problem) and isinstance(problem[0], TimeoutError)
        raise AgentRefused(
            f"the agent did not answer within {AGENT_TIMEOUT_S} s" if late else "the agent refused to sign"
        )


class AgentRefused(paramiko.SSHException):
    """The agent holds the key and does not sign with it."""
