"""`simfed serve`, `join` and `deploy`: a scenario with real clients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simfed.cli.inspect import (
    AllowPlugins,
    Figures,
    Imports,
    Overrides,
    Overwrite,
    Quiet,
    Resume,
    RunFolder,
    ScenarioFile,
    load,
)
from simfed.cli.run import RunOptions, make_run
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.errors import InputError
from simfed.ground.units import parse_duration

Token = Annotated[
    Path | None,
    typer.Option(
        help="File with a secret that server and clients share; beyond this "
        "machine due."
    ),
]


def serve(
    scenario: ScenarioFile,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where clients join; port 0: any free one."
        ),
    ] = "127.0.0.1:7000",
    out: RunFolder = None,
    token: Token = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate, PEM; beyond this machine due.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    at_least: Annotated[
        int | None,
        typer.Option(help="Begin once so many clients are there; all if omitted."),
    ] = None,
    join_within: Annotated[
        float,
        typer.Option(help="Seconds to wait for them, and whenever nobody is there."),
    ] = 600.0,
    silence: Annotated[
        float, typer.Option(help="Seconds without a byte after which a client is gone.")
    ] = 30.0,
    set_: Overrides = None,
    device: Annotated[
        str, typer.Option(help="Where the server computes: cpu or cuda.")
    ] = "cpu",
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    figures: Figures = True,
    quiet: Quiet = False,
) -> None:
    """Serve a scenario to clients that `join`; write its run."""
    from simfed.deploy.access import load_server_tls, read_token, require_guard
    from simfed.deploy.peers import Patience
    from simfed.deploy.serving import Listening
    from simfed.deploy.serving import serve as serve_scenario

    host, port = parse_address(listen, "--listen")
    if (tls_cert is None) != (tls_key is None):
        problem = "one of --tls-cert and --tls-key is missing"
        raise InputError("both, or none", where="--tls-cert", problem=problem)
    for name, number in (("--join-within", join_within), ("--silence", silence)):
        if not number > 0:
            raise InputError("seconds above 0", where=name, got=number)
    if at_least is not None and at_least < 1:
        raise InputError(
            "a whole number of at least 1", where="--at-least", got=at_least
        )
    secret, tls = read_token(token), None
    if tls_cert is not None and tls_key is not None:
        tls = load_server_tls(tls_cert, tls_key)
    require_guard(host, secret, tls)
    loaded = load(scenario, set_, allow_plugins)
    patience = Patience(silence_s=silence)
    say = _make_say(quiet)
    play = partial(
        serve_scenario,
        loaded,
        listening=Listening(host, port, secret, tls, join_within, at_least, patience),
        source=scenario,
        device=device,
        say=say,
        told=lambda host, port: say(
            f"{loaded.name}: clients join {_format_address(host, port)}"
        ),
    )
    options = RunOptions(out, resume, overwrite, figures, quiet)
    make_run(loaded, options, play, seconds="measured")


def join(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT")],
    client: Annotated[
        int, typer.Option(help="Which client of the scenario this is: 0, 1, …")
    ],
    token: Token = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="Trust the certificates in this file, PEM, and no others; speak TLS."
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to look for a server that is not there.")
    ] = 60.0,
    allow_plugins: AllowPlugins = False,
    quiet: Quiet = False,
) -> None:
    """Be one client of a served scenario, until it is done.

    It learns from the data of this machine.
    """
    from simfed.deploy.access import load_client_tls, read_token
    from simfed.deploy.joining import join as join_server

    host, port = parse_address(server, "HOST:PORT")
    if client < 0:
        raise InputError("a whole number of at least 0", where="--client", got=client)
    if not patience > 0:
        raise InputError("seconds above 0", where="--patience", got=patience)
    with sigterm_is_ctrl_c():
        join_server(
            host,
            port,
            client,
            token=read_token(token),
            tls=None if tls_ca is None else load_client_tls(tls_ca),
            patience_s=patience,
            allow_plugins=allow_plugins,
            say=_make_say(quiet),
        )


def certificate(
    hosts: Annotated[
        list[str],
        typer.Argument(metavar="HOST", help="The server's, as clients write it."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for cert.pem and key.pem.")],
) -> None:
    """Make a certificate for a server, and its key.

    Several hosts may be names of one server. It is valid for 397 days; make another one
    then.
    """
    from simfed.deploy.certificate import make_certificate

    made, key = make_certificate(hosts, out)
    typer.echo(f"{made}: for the server (--tls-cert) and clients (--tls-ca)")
    typer.echo(f"{key}: for the server alone (--tls-key)")


def deploy(
    scenario: ScenarioFile,
    out: RunFolder = None,
    shaped: Annotated[
        bool,
        typer.Option(
            "--shaped",
            help="Links and processor shares as in the scenario, in network namespaces "
            "of their "
            "own (Linux, root).",
        ),
    ] = False,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long what waits for a shaped link may wait before more is "
            "dropped; 100 ms "
            "(and room for 32 kB at least).",
        ),
    ] = None,
    set_: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    figures: Figures = True,
    quiet: Quiet = False,
) -> None:
    """Serve a scenario to processes on this machine, for trying.

    One process per client.
    """
    if queue is not None and not shaped:
        raise InputError(where="--queue", problem="without --shaped this says nothing")
    from simfed.deploy.local import deploy as deploy_here
    from simfed.deploy.shaping import QUEUE_S

    queue_s = QUEUE_S if queue is None else parse_duration(queue, where="--queue")
    loaded = load(scenario, set_, allow_plugins)
    play = partial(
        deploy_here,
        loaded,
        shaped=shaped,
        queue_s=queue_s,
        source=scenario,
        allow_plugins=allow_plugins,
        say=_make_say(quiet),
    )
    options = RunOptions(out, resume, overwrite, figures, quiet)
    make_run(loaded, options, play, seconds="measured")


def parse_address(text: str, where: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host stands in brackets.

    Raises:
        InputError: it is none; `where` names the option.

    >>> parse_address("[::1]:7000", "--listen")
    ('::1', 7000)
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise InputError("HOST:PORT such as 192.168.1.10:7000", where=where, got=text)
    return host, int(port)


def _format_address(host: str, port: int) -> str:
    """Return `HOST:PORT`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _make_say(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints to standard error; where `quiet`, nothing."""

    def say(sentence: str) -> None:
        if not quiet:
            print(sentence, file=sys.stderr, flush=True)

    return say
