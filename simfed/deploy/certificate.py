"""A server's certificate, signed by itself, and its key: `simfed certificate`.

Clients are given the certificate and trust nothing else, so nobody else needs to vouch
for it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from simfed.ground.errors import InputError

VALID = timedelta(days=397)
_EARLY = timedelta(days=1)
"""A client's clock may be behind."""


def make_certificate(
    hosts: Sequence[str], out: Path, until: datetime | None = None
) -> tuple[Path, Path]:
    """Write a certificate for these hosts, and its key, into a folder.

    Args:
        hosts: names and addresses, as clients write them.
        out: gets `cert.pem` and `key.pem`, the latter for its owner alone.
        until: when it expires; in `VALID` from now if not given.

    Returns:
        Both files.

    Raises:
        InputError: what is no host, files that exist, or no `cryptography`.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        problem = "making a certificate needs the package cryptography"
        raise InputError(problem=problem, hint="pip install 'simfed[tls]'") from None
    until = until or datetime.now(timezone.utc) + VALID
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not all(part.isalnum() for part in host.replace("-", "").split(".")):
                allowed = "a host's name or address, as clients write it"
                raise InputError(allowed, where="HOST", got=host) from None
            names.append(x509.DNSName(host))
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simfed")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    uses = dict.fromkeys(
        [
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    built = (
        x509.CertificateBuilder(subject, subject, public, x509.random_serial_number())
        .not_valid_before(min(datetime.now(timezone.utc), until) - _EARLY)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, **uses),
            critical=True,
        )
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = out / "cert.pem", out / "key.pem"
    try:
        out.mkdir(parents=True, exist_ok=True)
        contents = built.public_bytes(pem), private
        for file, data, mode in zip(files, contents, (0o644, 0o600), strict=True):
            with os.fdopen(
                os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
            ) as new:
                new.write(data)
    except OSError as error:
        why = error.strerror or str(error)
        allowed = "a folder to write a new cert.pem and key.pem into"
        raise InputError(allowed, where="--out", got=str(out), hint=why) from None
    return files
