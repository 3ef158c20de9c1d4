"""Who may talk: the same protocol and version, the same secret, the same scenario.

The server greets with a nonce; the client answers with its own and a proof, the server with the
scenario. Proof and keys are HMAC-SHA-256 under the token over both nonces and all else that was
sent until then: the token itself never travels, neither end believes the other without it, and
every later message carries a digest under the key of the end that sends it (`frames.Seal`), the
server's first one being its proof. Without a token anybody who reaches the port may join, and
messages carry no digests; without TLS everybody on the way can read along.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import NamedTuple

from simfed.deploy.frames import Frame, Refused, RefusedForNow, format_reason, quote
from simfed.ground.errors import InputError
from simfed.ground.version import VERSION

PROTOCOL = 2
"""1 had no digests."""
_SHORTEST_TOKEN, _LONGEST_TOKEN = 16, 4096
_LONGEST_TEXT = 128


class Opening(NamedTuple):
    """What both ends have told each other before the proof."""

    server_nonce: str
    client: int
    client_nonce: str
    life: str
    """Names the client's process, which may come back."""

    def proof(self, token: bytes) -> str:
        """Proves that the client knows the token.

        >>> Opening("a", 0, "b", "c").proof(b"1") == Opening("a", 0, "b", "d").proof(b"1")
        False
        """
        return self._derive(token, "proof").hex()

    def keys(self, token: bytes) -> tuple[bytes, bytes]:
        """With which the server seals its messages, and with which the client does."""
        return self._derive(token, "server"), self._derive(token, "client")

    def _derive(self, token: bytes, purpose: str) -> bytes:
        text = json.dumps([purpose, PROTOCOL, VERSION, *self])
        return hmac.new(token, text.encode(), hashlib.sha256).digest()


def nonce() -> str:
    """32 random bytes, as text."""
    return secrets.token_hex(32)


def greeting(server_nonce: str) -> Frame:
    """The server's first words, the same in every protocol: older clients understand them."""
    return Frame("simfed", {"protocol": PROTOCOL, "version": VERSION, "nonce": server_nonce})


def check_greeting(frame: Frame) -> str:
    """The server's nonce. Raises: `Refused` for a server of another protocol or version."""
    heed_refusal(frame)
    _expect_kind(frame, "simfed")
    _check_version(frame, "the server")
    return _read_text(frame, "nonce", "the server")


def hello(opening: Opening, token: bytes) -> Frame:
    """The client's answer to a greeting."""
    facts = {
        "protocol": PROTOCOL,
        "version": VERSION,
        "client": opening.client,
        "nonce": opening.client_nonce,
        "life": opening.life,
        "proof": opening.proof(token),
    }
    return Frame("hello", facts)


def check_hello(frame: Frame, token: bytes, server_nonce: str, clients: int) -> Opening:
    """Who the client is. Raises: `Refused`."""
    _expect_kind(frame, "hello")
    _check_version(frame, "the client")
    client = frame.facts.get("client")
    if type(client) is not int:
        raise Refused("the client says no number")
    texts = {name: _read_text(frame, name, "the client") for name in ("nonce", "life", "proof")}
    opening, proof = Opening(server_nonce, client, texts["nonce"], texts["life"]), texts["proof"]
    if not hmac.compare_digest(opening.proof(token), proof):
        raise Refused(
            "the token is another one than the server's, or none was given"
            if token
            else "the server was started without a token: join without one"
        )
    if not 0 <= client < clients:
        raise Refused(f"clients are 0 to {clients - 1} in this scenario, got {quote(client)}")
    return opening


def check_welcome(frame: Frame) -> None:
    """Raises: `Refused` for a server that says no."""
    heed_refusal(frame)
    _expect_kind(frame, "welcome")


def heed_refusal(frame: Frame) -> None:
    """Raises: `Refused` for a refusal, `RefusedForNow` where it is worth trying again."""
    if frame.kind == "refused":
        kind = RefusedForNow if frame.facts.get("later") is True else Refused
        raise kind(format_reason(frame.facts.get("why")) or "the server gives no reason")


def read_token(file: str | Path | None) -> bytes:
    """The secret in a file, without white space around it; empty without a file.

    Raises: `InputError` for a file that cannot be read, or a secret that could be guessed.
    """
    if file is None:
        return b""
    try:
        with open(file, "rb") as opened:  # a pipe as well, but no more than a token of what it has
            token = opened.read(_LONGEST_TOKEN + 1)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise InputError("a file with the token", where="--token", problem=why) from None
    if len(token) > _LONGEST_TOKEN:
        allowed = f"a token of at most {_LONGEST_TOKEN:,} bytes"
        raise InputError(allowed, where=str(file), got="more")
    if len(token := token.strip()) < _SHORTEST_TOKEN:
        allowed = f"a token of at least {_SHORTEST_TOKEN} bytes"
        cure = "python -c 'import secrets; print(secrets.token_hex())' makes one"
        raise InputError(allowed, where=str(file), got=len(token), hint=cure)
    return token


def _check_version(frame: Frame, who: str) -> None:
    for name, ours, words in (
        ("protocol", PROTOCOL, "speaks protocol"),
        ("version", VERSION, "has simfed"),
    ):
        theirs = frame.facts.get(name)
        if theirs != ours:
            shown = quote(theirs).strip("'")
            raise Refused(f"{who} {words} {shown}, this end {ours}: both need the same simfed")


def _read_text(frame: Frame, name: str, who: str) -> str:
    text = frame.facts.get(name)
    if not (isinstance(text, str) and text.isascii() and 0 < len(text) <= _LONGEST_TEXT):
        raise Refused(
            f"{who}'s {name} is no text of at most {_LONGEST_TEXT} ASCII characters, "
            f"got {quote(text)}"
        )
    return text


def _expect_kind(frame: Frame, kind: str) -> None:
    if frame.kind != kind:
        raise Refused(f"a message {kind!r} was due, {quote(frame.kind)} came")
