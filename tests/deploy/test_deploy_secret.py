"""TLS, with a certificate that is made here."""

import shutil
import subprocess

import deploy_worlds as worlds
import pytest

import simfed
from simfed.deploy import joining
from simfed.deploy.serving import Listening
from simfed.deploy.tls import load_client_tls, load_server_tls
from simfed.ground.errors import InputError


def certificate(folder, name):
    """(certificate, key) of a server on the loopback, signed by itself; None without `openssl`."""
    if shutil.which("openssl") is None:
        return None
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            paths[0],
            "-keyout",
            paths[1],
        ],
        check=True,
        capture_output=True,
    )
    return paths


def test_clients_that_trust_the_certificate_learn_the_bits_and_others_do_not_get_in(
    tmp_path, monkeypatch
):
    ours, theirs = (certificate(tmp_path, name) for name in ("ours", "theirs"))
    if ours is None or theirs is None:  # what can be said without certificates
        with pytest.raises(InputError, match="a certificate and its key, in PEM"):
            load_server_tls(tmp_path / "none.pem", tmp_path / "none.key")
        return
    plan = worlds.scenario(rounds=2)
    strangers = worlds.Crowd((0, 1), tls=load_client_tls(theirs[0]))
    plain = worlds.Crowd((2,), patience_s=0.1)

    def others_first(host, port):
        strangers.begin(host, port)
        strangers.end()
        with monkeypatch.context() as patch:  # both ends wait for each other
            patch.setattr(joining, "_HANDSHAKE_S", 0.2)
            plain.begin(host, port)
            plain.end()

    listening = Listening(patience=worlds.QUICK, join_s=300.0, tls=load_server_tls(*ours))
    crowd = worlds.Crowd(tls=load_client_tls(ours[0]))
    real = worlds.deployed(plan, listening=listening, crowd=crowd, before=others_first)
    assert crowd.errors == {}
    assert sorted(strangers.errors) == [0, 1]
    assert all("TLS" in str(error) for error in strangers.errors.values())
    assert sorted(plain.errors) == [2]
    simulated = simfed.run(plan, progress=False, workers=1)
    assert real.prototypes.equals(simulated.prototypes)


def test_files_that_are_no_certificates_are_refused_in_a_sentence(tmp_path):
    text = tmp_path / "text"
    text.write_text("no certificate")
    with pytest.raises(InputError, match="a certificate and its key, in PEM"):
        load_server_tls(text, text)
    with pytest.raises(InputError, match="certificates to trust, in PEM"):
        load_client_tls(text)
    with pytest.raises(InputError, match="missing: no such file"):
        load_client_tls(tmp_path / "missing")
