"""Public-key authentication with the keys that the inventory names, and no others.

paramiko's own order offers every key of the agent, and a server hangs up after six (MaxAuthTries), often before the right
one came. Here the keys named by ``identity_files`` are taken from the agent if it holds them, else from the file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import PublicBlob, UnknownKeyType

from orchestrator.errors import ConnectError
from orchestrator.remote.endpoint import Endpoint

USUAL_TRIES = 6
"""OpenSSH's default of MaxAuthTries."""


@dataclass(frozen=True)
class Candidate:
    """A key that can be offered, and where it comes from."""

    key: paramiko.PKey
    origin: str

    def __str__(self) -> str:
        return f"{self.key.get_name()} {self.key.fingerprint} ({self.origin})"


class KeyAuthentication:
    """What :meth:`paramiko.SSHClient.connect` takes as `auth_strategy`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._login = f"{endpoint.user}@{endpoint.where}"

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in.

        Raises:
            ConnectError: no key could be offered, or none was accepted in time.
        """
        with _agent_keys(self._endpoint.use_agent) as held:
            candidates, problems = find_candidates(self._endpoint, held)
            if not candidates:
                raise self._nothing_to_offer(problems)
            refused: list[str] = []
            for candidate in candidates:
                if self._try(transport, candidate, refused + problems):
                    return
                refused.append(f"refused: {candidate}")
        raise ConnectError(
            f"{self._endpoint.host}: {self._login} accepts none of the keys offered (a user that does not exist looks the same)",
            evidence=refused + problems,
            next_step=f"check user: and identity_files: of {self._endpoint.host} in hosts.yml, or add a key there: "
            f"ssh-copy-id -p {self._endpoint.port} {self._endpoint.user}@{self._endpoint.address}",
        )

    def _try(self, transport: paramiko.Transport, candidate: Candidate, evidence: list[str]) -> bool:
        host = self._endpoint.host
        try:
            further = transport.auth_publickey(self._endpoint.user, candidate.key)
        except paramiko.BadAuthenticationType as error:
            raise ConnectError(
                f"{host}: {self._login} takes no public keys, only: {', '.join(filter(None, error.allowed_types)) or 'nothing'}",
                next_step="set PubkeyAuthentication yes in its sshd_config, and reload sshd",
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not transport.is_active():
                raise self._hung_up(candidate, evidence) from error
            if "timeout" in str(error).lower():
                raise ConnectError(
                    f"{host}: {self._login} did not answer within {transport.auth_timeout:g} s during authentication",
                    evidence=[*evidence, f"offered: {candidate}"],
                    next_step="look at its load and its log: uptime; journalctl -u ssh",
                ) from error
            return False
        if further:
            raise ConnectError(
                f"{host}: {self._login} accepted the key but also wants: {', '.join(further)}, which can't be answered unattended",
                evidence=[f"accepted: {candidate}"],
                next_step="set AuthenticationMethods publickey for this user in its sshd_config",
            )
        return True

    def _hung_up(self, candidate: Candidate, evidence: list[str]) -> ConnectError:
        tried = len([line for line in evidence if line.startswith("refused")]) + 1
        many = tried >= USUAL_TRIES - 1
        return ConnectError(
            f"{self._endpoint.host}: {self._login} closed the connection after {tried} key{'s' if tried > 1 else ''}"
            + (": too many keys were offered" if many else " during authentication"),
            evidence=[*evidence, f"last offered: {candidate}"],
            next_step=f"name the right key: identity_files: [~/.ssh/KEY] of {self._endpoint.host} in hosts.yml",
        )

    def _nothing_to_offer(self, problems: list[str]) -> ConnectError:
        if problems:
            return ConnectError(
                f"{self._endpoint.host}: no key for {self._login} can be used", evidence=problems, next_step=_advice(self._endpoint)
            )
        source = "the SSH agent holds none (or does not run)" if self._endpoint.use_agent else "the inventory names none"
        return ConnectError(f"{self._endpoint.host}: there is no key for {self._login}: {source}", next_step=_advice(self._endpoint))


def find_candidates(endpoint: Endpoint, held: list[paramiko.PKey]) -> tuple[list[Candidate], list[str]]:
    """The keys to offer, in order, and what is wrong with those that can't be. `held` are the agent's."""
    if not endpoint.identity_files:
        return [Candidate(key, "agent") for key in held], []
    candidates: list[Candidate] = []
    problems: list[str] = []
    for path in endpoint.identity_files:
        found = _from_agent(path, held) or _from_file(path)
        if isinstance(found, Candidate):
            candidates.append(found)
        else:
            problems.append(found)
    return candidates, problems


def _from_agent(path: Path, held: list[paramiko.PKey]) -> Candidate | None:
    try:
        public = PublicBlob.from_file(f"{path}.pub")
    except (OSError, ValueError):
        return None
    return next((Candidate(key, f"{path}, from the agent") for key in held if key.asbytes() == public.key_blob), None)


def _from_file(path: Path) -> Candidate | str:
    try:
        return Candidate(_read_key(path, path.stat().st_mtime_ns), str(path))
    except OSError as error:
        return f"{path}: {error.strerror}"
    except (paramiko.PasswordRequiredException, TypeError):  # cryptography's word for a missing passphrase
        return f"{path}: encrypted, and the SSH agent does not hold it: ssh-add {path}"
    except (ValueError, UnknownKeyType, paramiko.SSHException) as error:
        return f"{path}: not a private key that can be read: {error}"


@functools.lru_cache(maxsize=64)
def _read_key(path: Path, changed: int) -> paramiko.PKey:
    """A key as it was when its file was last `changed`; many hosts have the same."""
    return paramiko.PKey.from_path(path)


@contextmanager
def _agent_keys(wanted: bool) -> Iterator[list[paramiko.PKey]]:
    if not wanted:
        yield []
        return
    agent = paramiko.Agent()
    try:
        yield list(agent.get_keys())
    except paramiko.SSHException as error:
        raise ConnectError(f"the SSH agent does not answer as one: {error}", next_step="ssh-add -l") from error
    finally:
        agent.close()


def _advice(endpoint: Endpoint) -> str:
    if endpoint.identity_files:
        present = [path for path in endpoint.identity_files if path.is_file()]
        if not present:
            return f"correct identity_files: of {endpoint.host} in hosts.yml: no such file on this machine"
        add = f"eval $(ssh-agent) && ssh-add {present[0]}"
        return add if endpoint.use_agent else f"{add}, and agent: true for {endpoint.host} in hosts.yml"
    return f"ssh-add, or name a key: identity_files: [~/.ssh/id_ed25519] of {endpoint.host} in hosts.yml"
