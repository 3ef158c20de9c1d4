"""TLS of both ends, from files."""

from __future__ import annotations

import ssl
from pathlib import Path

from simfed.ground.errors import InputError
from simfed.ground.inputs import check_file


def load_server_tls(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """A server's TLS from its certificate and key, in PEM. Raises: `InputError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for file in (certificate, key):
        check_file(file)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        allowed, got = "a certificate and its key, in PEM", f"{certificate}, {key}"
        why = error.strerror or str(error)
        raise InputError(allowed, where="--tls-cert, --tls-key", got=got, hint=why) from None
    return context


def load_client_tls(authority: str | Path | None) -> ssl.SSLContext:
    """A client's TLS that trusts the certificates in this file (None: what this machine trusts).
    Raises: `InputError`."""
    if authority is not None:
        check_file(authority)
    try:
        return ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        allowed = "certificates to trust, in PEM"
        raise InputError(allowed, where="--tls-ca", got=str(authority), hint=why) from None
