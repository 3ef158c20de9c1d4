"""Who may talk: the same protocol and version, the same secret, the same scenario.

The server greets with a nonce; the client answers with its own and a proof, the server with its
proof and the scenario. A proof is HMAC-SHA-256 under the token over who says it and both nonces:
the token itself never travels, and neither end believes the other without it. Without a token
anybody who reaches the port may join; without TLS everybody on the way can read along.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Any

from simfed.deploy.frames import Busy, Frame, Refused
from simfed.errors import InputError
from simfed.version import VERSION

__all__ = ["PROTOCOL", "check_hello", "check_welcome", "greeting", "heed_refusal", "hello",
           "nonce", "proof", "read_token"]  # fmt: skip

PROTOCOL = 1
MOST_BODY = 2**16
"""Bytes of a body before the other end is known."""
_SHORTEST_TOKEN = 16


def nonce() -> str:
    """32 random bytes, as text."""
    return secrets.token_hex(32)


def proof(token: bytes, who: str, first: str, second: str) -> str:
    """That `who` knows the token, in a talk with these nonces (the server's first).

    >>> proof(b"secret", "server", "a", "b") == proof(b"secret", "client 1", "a", "b")
    False
    """
    return hmac.new(token, f"{who}|{first}|{second}".encode(), hashlib.sha256).hexdigest()


def greeting(server_nonce: str) -> Frame:
    """The server's first words."""
    return Frame("simfed", {"protocol": PROTOCOL, "version": VERSION, "nonce": server_nonce})


def hello(frame: Frame, token: bytes, client: int, client_nonce: str, life: str) -> Frame:
    """The client's answer to a greeting. `life`: names this process, which may come back.

    Raises: `Refused` for a server of another protocol or version.
    """
    _expect(frame, "simfed")
    _same_version(frame.facts, "the server")
    said = proof(token, f"client {client}", str(frame.facts.get("nonce")), client_nonce)
    return Frame(
        "hello",
        {
            "protocol": PROTOCOL, "version": VERSION, "client": client, "nonce": client_nonce,
            "proof": said, "life": life,
        },
    )  # fmt: skip


def check_hello(frame: Frame, token: bytes, server_nonce: str, clients: int) -> int:
    """The client's number. Raises: `Refused`."""
    _expect(frame, "hello")
    facts = frame.facts
    _same_version(facts, "the client")
    client = facts.get("client")
    if type(client) is not int:
        raise Refused("the client says no number")
    expected = proof(token, f"client {client}", server_nonce, str(facts.get("nonce")))
    if not hmac.compare_digest(expected.encode(), str(facts.get("proof")).encode()):
        raise Refused("the token is another one than the server's")
    if not 0 <= client < clients:
        raise Refused(f"clients are 0 to {clients - 1} in this scenario, got {client}")
    return client


def check_welcome(frame: Frame, token: bytes, server_nonce: str, client_nonce: str) -> None:
    """Raises: `Refused` for a server that does not know the token, or says no."""
    heed_refusal(frame)
    _expect(frame, "welcome")
    expected = proof(token, "server", server_nonce, client_nonce)
    if not hmac.compare_digest(expected.encode(), str(frame.facts.get("proof")).encode()):
        raise Refused("the server does not know the token")


def heed_refusal(frame: Frame) -> None:
    """Raises: `Refused` (`Busy` where it is worth trying again) if that is what the frame says."""
    if frame.kind == "refused":
        kind = Busy if frame.facts.get("later") is True else Refused
        raise kind(str(frame.facts.get("why"))[:500])


def read_token(file: str | Path | None) -> bytes:
    """The secret in a file, without white space around it; empty: none was asked for.

    Raises: `InputError` for a file that cannot be read, or a secret that could be guessed.
    """
    if file is None:
        return b""
    try:
        token = Path(file).read_bytes().strip()
    except OSError as error:
        raise InputError(
            "a file with the token", where="--token", got=error.strerror or str(error)
        ) from None
    if len(token) < _SHORTEST_TOKEN:
        raise InputError(
            f"a token of at least {_SHORTEST_TOKEN} bytes", where=str(file), got=len(token),
            hint="python -c 'import secrets; print(secrets.token_hex())' makes one",
        )  # fmt: skip
    return token


def _same_version(facts: Any, who: str) -> None:
    if facts.get("protocol") != PROTOCOL:
        raise Refused(f"{who} speaks protocol {facts.get('protocol')}, this end {PROTOCOL}")
    if facts.get("version") != VERSION:
        raise Refused(f"{who} has simfed {facts.get('version')}, this end {VERSION}")


def _expect(frame: Frame, kind: str) -> None:
    if frame.kind != kind:
        raise Refused(f"a message {kind!r} was due, {frame.kind[:40]!r} came")
