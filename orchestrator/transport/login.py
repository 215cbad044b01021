"""Logging in: which keys are offered, in which order, and what to say when none is taken."""

from __future__ import annotations

from collections.abc import Iterator

import paramiko
from paramiko.agent import AgentKey
from paramiko.auth_strategy import AuthResult, AuthSource, AuthStrategy

from orchestrator.errors import HostRefused, HostUnreachable
from orchestrator.transport.keys import Candidate, KeyStore
from orchestrator.transport.session import Session, plain
from orchestrator.transport.ssh_agent import AgentLogin, AgentRefused
from orchestrator.transport.target import Target, Warn


class Login(AuthStrategy):
    """Offers the keys of a `KeyStore` until the host takes one. Never a password; the agent is never forwarded."""

    def __init__(self, target: Target, keys: KeyStore, warn: Warn) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._target = target
        self._keys = keys
        self._warn = warn
        self._notes: list[str] = []
        self._offered: list[str] = []
        self._allowed: set[str] = set()
        self._was_welcome = False
        """The host would have taken a key, with which the agent did not sign."""

    def get_sources(self) -> Iterator[AuthSource]:
        """Nothing: `authenticate` goes through the keys itself, to keep account of them."""
        return iter(())

    def authenticate(self, transport: paramiko.Transport) -> AuthResult:
        """Returns once the host let us in. Raises `HostRefused` with what was tried, `HostUnreachable`."""
        assert isinstance(transport, Session)
        if self._with_keys(transport) or self._with_nothing(transport):
            return AuthResult(strategy=self)
        raise self._refusal(transport)

    def _with_keys(self, session: Session) -> bool:
        for candidate in self._keys.candidates(self._target, self._notes):
            self._offered.append(candidate.origin)
            try:
                further = self._try(session, candidate)
            except paramiko.BadAuthenticationType as error:
                self._allowed.update(error.allowed_types)
                return False
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise HostUnreachable(
                        self._target.name, "no answer in time", step="authentication"
                    ) from error
            except (paramiko.SSHException, ValueError, OSError) as error:  # this key cannot sign; another may
                self._notes.append(f"{candidate.origin}: {error}")
            else:
                if not further:
                    return True
                self._allowed.update(further)
                return False
            if not session.is_active():
                return False
        return False

    def _try(self, session: Session, candidate: Candidate) -> list[str]:
        """Offer one key; the ways that the host wants beside it."""
        key = candidate.key
        if not isinstance(key, AgentKey):
            return list(session.auth_publickey(self._target.user, key))
        warning = f"{self._target.name}: {candidate.origin}: {_asks_for(key)}"
        login = AgentLogin(session, self._target.user, key, lambda: self._warn(warning))
        try:
            return login.log_in()
        except AgentRefused as error:
            self._was_welcome = True
            raise AgentRefused(f"the host would take it, but {error}: {_may_need(key)}") from error

    def _with_nothing(self, session: Session) -> bool:
        """Some hosts know us by other means (Tailscale); for others this asks which ways they would take."""
        if not session.is_active() or self._allowed:
            return False
        try:
            session.auth_none(self._target.user)
        except paramiko.BadAuthenticationType as error:
            self._allowed.update(error.allowed_types)
        except (paramiko.SSHException, OSError, EOFError):
            pass
        return session.is_authenticated()

    def _refusal(self, session: Session) -> HostRefused:
        user = self._target.user
        offered = ", ".join(self._offered)
        message = f"no key was accepted for user {user} (offered: {offered})"
        if not offered:
            message = f"no key to offer for {user}"
        elif self._was_welcome:
            message = f"no key signed the login of user {user} (offered: {offered})"
        hint = f"does `{self._target.ssh_command}` work without a password?"
        if not session.is_active():
            said = session.farewell or "it closed the connection"
            message += f"; then the host gave up: {said}"
            hint = (
                "it counts every key as a failed login: name the right one with `identity_file` in hosts.yaml, or with"
                " `IdentityFile` and `IdentitiesOnly yes` in the ssh config"
            )
        elif self._target.smart_card:
            hint = f"PKCS11Provider {self._target.smart_card} is for the ssh client alone: set `transport: openssh`"
        elif self._allowed and "publickey" not in self._allowed:
            message += f"; the host takes only {plain(', '.join(sorted(self._allowed)))}"
            hint += "\n  `transport: openssh` leaves the login to the ssh client (GSSAPI, smart cards); passwords are never asked for"
        if self._notes:
            message += "".join(f"\n  {note}" for note in self._notes)
        return HostRefused(self._target.name, message, step="authentication", hint=hint)


def _asks_for(key: AgentKey) -> str:
    """What a person may have to do when an agent does not sign at once."""
    return "touch the hardware key" if _is_hardware(key) else "the agent has not signed yet: does it ask you?"


def _may_need(key: AgentKey) -> str:
    if _is_hardware(key):
        return "the hardware key was not touched in time, wants a PIN, or is not plugged in"
    return "is it locked, or was the question for a confirmation declined?"


def _is_hardware(key: AgentKey) -> bool:
    return key.get_name().startswith("sk-")
