"""Addresses as they are typed: HOST:PORT."""

import pytest

from simfed.cli import main


@pytest.mark.parametrize(
    "address", ["here", "here:", ":7000", "here:65536", "here:-1", "::1:7000"]
)
def test_what_is_no_host_with_a_port_is_told(address, capsys):
    assert main(["join", address, "--client", "0"]) == 2
    told = f"got {address!r}, expected HOST:PORT such as 192.168.1.10:7000"
    assert told in capsys.readouterr().err
