"""Access to a server: the same version and secret, and TLS beyond this machine.

A client says who it is as it opens its WebSocket: version, number and a name of its
process in the path, the token as `Authorization: Bearer`. A server answers with 101, or
with 403 and a sentence before anything else of the client is read.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import ssl
from pathlib import Path
from typing import NamedTuple

from simfed.deploy.messages import Refused, quote
from simfed.ground.errors import InputError
from simfed.ground.inputs import check_file
from simfed.ground.version import VERSION

SHAPED = ipaddress.ip_network("198.18.0.0/15")
"""Set aside for tests of networks: `deploy --shaped` takes its namespaces' addresses
from it."""
_SHORTEST_TOKEN, _LONGEST_TOKEN = 16, 4096
_PATH = re.compile(r"/([0-9A-Za-z.+-]{1,40})/([0-9]{1,9})/([0-9a-f]{16})")


class Seat(NamedTuple):
    """A client's number and process, as it says them with its version in the path.

    A second process of a client that is here is turned away until the first is silent.
    """

    client: int
    life: str
    """Names the client's process, which may come back; 16 hexadecimal digits."""

    def path(self) -> str:
        """Return the path that a client asks for."""
        return f"/{VERSION}/{self.client}/{self.life}"


def read_seat(path: str, bearers: list[str], token: str, clients: int) -> Seat:
    """Return whom a request is from.

    Args:
        path: that the client asks for, see `Seat.path`.
        bearers: its `Authorization` headers.
        token: the server's; empty: everybody may talk.
        clients: the number of the scenario's clients.

    Raises:
        Refused: another token or version, a client that is not in the scenario, or
        somebody who is no client of simfed at all.
    """
    known = f"Bearer {token}".encode()
    given = bearers[0].encode("utf-8", "replace") if len(bearers) == 1 else b""
    if token and not hmac.compare_digest(known, given):
        raise Refused("the token is another one than the server's, or none was given")
    asked = _PATH.fullmatch(path)
    if asked is None:
        raise Refused(
            f"this is a server of simfed {VERSION}, to which `simfed join` talks"
        )
    version, client, life = asked.groups()
    if version != VERSION:
        raise Refused(
            f"the client has simfed {version}, the server {VERSION}: both need the same"
        )
    if int(client) >= clients:
        raise Refused(
            f"clients are 0 to {clients - 1} in this scenario, got {quote(int(client))}"
        )
    return Seat(int(client), life)


def is_here(host: str) -> bool:
    """Return whether what is sent to an address stays on this machine.

    It does so also in a namespace that `deploy` made. A name other than localhost could
    mean any address.

    >>> [is_here(host) for host in ("localhost", "127.0.0.1", "::1")]
    [True, True, True]
    >>> [is_here(host) for host in ("0.0.0.0", "pi0.local")]
    [False, False]
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address in SHAPED


def require_guard(host: str, token: str, tls: ssl.SSLContext | None) -> None:
    """Check that a server that other machines reach has a secret and TLS.

    Args:
        host: at which it listens.
        token: empty: none.
        tls: None: none.

    Raises:
        InputError: it lacks one of them.
    """
    lacks = [
        *([] if token else ["--token"]),
        *([] if tls else [("--tls-cert, --tls-key")]),
    ]
    if lacks and not is_here(host):
        raise InputError(
            "--token, --tls-cert and --tls-key for an address that other machines "
            "reach",
            where="--listen",
            got=f"{host} without {' and '.join(lacks)}",
            hint="`simfed certificate HOST --out DIR` makes a certificate and its key",
        )


def read_token(file: str | Path | None) -> str:
    """Return the secret in a file, without white space around it.

    Args:
        file: may be a pipe; None: the secret is empty.

    Raises:
        InputError: the file cannot be read, or the secret could be guessed.
    """
    if file is None:
        return ""
    try:
        # a pipe as well, but no more than a token of what it has
        with open(file, "rb") as opened:
            data = opened.read(_LONGEST_TOKEN + 1)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise InputError(
            "a file with the token", where="--token", problem=why
        ) from None
    if len(data) > _LONGEST_TOKEN:
        allowed = f"a token of at most {_LONGEST_TOKEN:,} bytes"
        raise InputError(allowed, where=str(file), got="more")
    data = data.strip()
    cure = "python -c 'import secrets; print(secrets.token_hex())' makes one"
    if len(data) < _SHORTEST_TOKEN:
        allowed = f"a token of at least {_SHORTEST_TOKEN} bytes"
        raise InputError(allowed, where=str(file), got=len(data), hint=cure)
    if not all(32 < byte < 127 for byte in data):
        allowed = "a token of visible ASCII characters, without spaces"
        raise InputError(allowed, where=str(file), got="others", hint=cure)
    return data.decode()


def load_server_tls(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """Return a server's TLS (1.2 or later).

    Args:
        certificate: in PEM.
        key: of it, in PEM.

    Raises:
        InputError: they cannot be read, or are no pair.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for file in (certificate, key):
        check_file(file)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        allowed, got = "a certificate and its key, in PEM", f"{certificate}, {key}"
        why = error.strerror or str(error)
        raise InputError(
            allowed, where="--tls-cert, --tls-key", got=got, hint=why
        ) from None
    return context


def load_client_tls(authority: str | Path | None) -> ssl.SSLContext:
    """Return a client's TLS.

    Args:
        authority: a file of certificates to trust, in PEM; None: those that this
        machine trusts.

    Raises:
        InputError: it cannot be read.
    """
    if authority is not None:
        check_file(authority)
    try:
        return ssl.create_default_context(
            cafile=None if authority is None else str(authority)
        )
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        allowed = "certificates to trust, in PEM"
        raise InputError(
            allowed, where="--tls-ca", got=str(authority), hint=why
        ) from None
