"""TLS with certificates made here: the right one, another host's, an expired one.

Stolen tokens.
"""

import asyncio
import ssl
import stat
import sys
from datetime import datetime, timedelta, timezone

import deploy_talks as talks
import deploy_worlds as worlds
import pytest

from simfed import InputError
from simfed.cli import main
from simfed.deploy import Refused, join, joining
from simfed.deploy.access import load_client_tls, load_server_tls
from simfed.deploy.certificate import make_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(the server's end, the end of clients that trust it) by name."""
    folder = tmp_path_factory.mktemp("tls")
    earlier = datetime.now(timezone.utc) - timedelta(hours=1)
    files = {
        "ours": make_certificate(["127.0.0.1", "server.local"], folder / "1"),
        "theirs": make_certificate(["127.0.0.1"], folder / "2"),
        "elsewhere": make_certificate(["server.local", "127.0.0.2"], folder / "3"),
        "expired": make_certificate(["127.0.0.1"], folder / "4", earlier),
    }
    return {
        name: (load_server_tls(certificate, key), load_client_tls(certificate))
        for name, (certificate, key) in files.items()
    }


def test_clients_that_trust_the_certificate_learn_the_bits_and_others_do_not_get_in(
    made, monkeypatch
):
    plan, token = worlds.scenario(rounds=2), talks.TOKEN
    server, ours = made["ours"]
    strangers = worlds.Crowd((0, 1), tls=made["theirs"][1], token=token)
    plain = worlds.Crowd((2,), patience_s=0.1, token=token)

    def others_first(host, port):
        strangers.begin(host, port)
        strangers.end()
        with monkeypatch.context() as patch:  # both ends wait for each other
            patch.setattr(joining, "_OPENING_S", 0.2)
            plain.begin(host, port)
            plain.end()

    listening = worlds.at_a_port(port=0, tls=server, token=token)
    crowd = worlds.Crowd(tls=ours, token=token)
    real = worlds.deployed(plan, listening=listening, crowd=crowd, before=others_first)
    assert crowd.errors == {}
    assert sorted(strangers.errors) == [0, 1]
    for error in strangers.errors.values():
        assert "TLS: self-signed certificate" in str(error)
    assert sorted(plain.errors) == [2]
    worlds.assert_same_learning(real, plan)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("elsewhere", "TLS: IP address mismatch, certificate is not valid for '127.0"),
        ("expired", "TLS: certificate has expired"),
    ],
)
def test_certificate_that_is_another_hosts_or_old_is_refused_in_a_sentence(
    made, name, why
):
    tls, trusting = made[name]
    with talks.Server(tls=tls) as server, pytest.raises(Refused, match=why):
        join(*server.address, 0, token=talks.TOKEN, tls=trusting, patience_s=120.0)


def test_silent_connections_before_tls_keep_nobody_out(made):
    """Who says nothing holds a connection that the library has not seen yet."""
    tls, trusting = made["ours"]

    async def crowd(server):
        silent = [await asyncio.open_connection(*server.address) for _ in range(100)]
        wire = await talks.welcomed(server.address, ssl=trusting)
        held = server.strangers
        for _, writer in silent:
            writer.close()
        await wire.close()
        return held

    with talks.Server(tls=tls) as server:
        assert talks.soon(crowd(server), 30) == 15


def test_client_speaks_tls_to_another_machine_without_being_told(monkeypatch):
    seen = []
    monkeypatch.setattr(joining._Client, "live", lambda self, *_: seen.append(self.tls))
    monkeypatch.setattr(joining.asyncio, "run", lambda work: None)
    for host in ("127.0.0.1", "198.18.0.1", "pi0.local", "10.0.0.1"):
        join(host, 7000, 0)
    assert seen[:2] == [None, None]
    for tls in seen[2:]:
        assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_command_makes_a_certificate_whose_key_others_cannot_read(tmp_path, capsys):
    words = ["certificate", "server.local", "--out", str(tmp_path / "tls")]
    assert main(words) == 0
    assert "key.pem: for the server alone" in capsys.readouterr().out
    assert stat.S_IMODE((tmp_path / "tls" / "key.pem").stat().st_mode) == 0o600
    assert main(words) == 2
    said = "expected a folder to write a new cert.pem and key.pem into"
    assert said in capsys.readouterr().err


def test_certificate_without_the_package_is_refused_in_a_sentence(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    said = r"needs the package cryptography.*simfed\[tls\]"
    with pytest.raises(InputError, match=said):
        make_certificate(["server.local"], tmp_path)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (lambda path: load_server_tls(path, path), "a certificate and its key, in PEM"),
        (load_client_tls, "certificates to trust, in PEM"),
    ],
)
def test_files_that_are_no_certificates_are_refused(tmp_path, load, expected):
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(InputError, match=expected):
        load(tmp_path / "text")
