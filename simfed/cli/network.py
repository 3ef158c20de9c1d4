"""`simfed network`: hold the network models against known finish times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simfed.ground.errors import InputError

if TYPE_CHECKING:
    from simfed.net.cases import CaseErrors

app = typer.Typer(no_args_is_help=True, help="Play given flows over given links.")

_SHOWN = 20


class ModelName(str, Enum):
    """What `--model` may be: fluid shares of links, or TCP's windows."""

    fluid = "fluid"
    tcp = "tcp"


@app.callback()
def _group() -> None:
    """Play given flows over given links."""


@app.command()
def replay(
    cases: Annotated[
        Path, typer.Argument(metavar="CASES.json", help="Links, flows and, if known, finish times.")
    ],
    model: Annotated[ModelName, typer.Option(help="What a transfer does.")] = ModelName.fluid,
    persistent: Annotated[
        bool, typer.Option(help="tcp: connections are open already, no handshake.")
    ] = False,
    header_bytes: Annotated[
        float | None,
        typer.Option(help="tcp: bytes per segment besides its payload: 54, on Ethernet 66."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write all finish times and errors there, as JSON.")
    ] = None,
) -> None:
    """Compute when every flow finishes; where the cases say when it really did, show the errors.

    A case has `links` (capacity_bytes_per_s, latency_s) and `flows` (start_s, size_bytes, path: the
    indices of its links; finish_s if known); that of a radio cell has `cell` and `stations` (or
    `ues`) in place of links. See `simfed help network`.
    """
    from simfed import net
    from simfed.net.models import make_model

    chosen = _read_model(model, persistent, header_bytes)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        allowed, problem = (
            "a file in a folder that exists",
            "its folder does not exist, or it is one",
        )
        raise InputError(allowed, where="--out", problem=problem)
    network_model, loaded = make_model(chosen), net.load_cases(cases)
    finishes = []
    for number, case in enumerate(loaded):
        try:
            finishes.append(net.replay(case, network_model))
        except InputError as error:
            raise error.within(f"{cases}: cases[{number}]") from None
    try:
        errors = net.error_table(loaded, finishes)
    except InputError as error:
        raise error.within(str(cases)) from None
    if out is not None:
        _write_finishes(out, chosen, loaded, finishes, errors)
    if errors:
        _print_errors(errors)
    else:
        _print_finishes(loaded, finishes)
    if out is not None:
        print(f"written: {out}")


def _read_model(model: ModelName, persistent: bool, header_bytes: float | None) -> dict[str, Any]:
    from simfed.net import Tcp

    if model is ModelName.tcp:
        header = Tcp.header_bytes if header_bytes is None else header_bytes
        return {"kind": "tcp", "handshake": not persistent, "header_bytes": header}
    if persistent or header_bytes is not None:
        option = "--persistent" if persistent else "--header-bytes"
        raise InputError(where=option, problem="without --model tcp this says nothing")
    return {"kind": model.value}


def _print_errors(rows: Sequence[CaseErrors]) -> None:
    print(
        f"{'relative error of':<28}{'flows':>7}{'mean':>9}{'median':>9}"
        f"{'90 %':>9}{'worst':>9}{'makespan':>9}"
    )
    for row in rows:
        figures = [
            _format_share(x) for x in (row.mean, row.median, row.p90, row.worst, row.makespan)
        ]
        if row.makespan > 0 and row.name != "all":
            figures[-1] = f"+{figures[-1]}"
        print(f"{row.name:<28.28}{row.flows:>7}{''.join(f'{x:>9}' for x in figures)}")


def _format_share(share: float) -> str:
    return f"{share:.2%}" if share == 0 or abs(share) >= 5e-5 else f"{share * 100:.0e}%"


def _print_finishes(cases: Sequence[Mapping[str, Any]], finishes: Sequence[Any]) -> None:
    print(f"{'case':<28}{'flow':>7}{'start_s':>16}{'finish_s':>16}")
    lines = [
        f"{case.get('name', f'case {n}')!s:<28.28}{k:>7}{flow['start_s']:>16.6f}{finish_s:>16.6f}"
        for n, (case, finish) in enumerate(zip(cases, finishes, strict=True))
        for k, (flow, finish_s) in enumerate(zip(case["flows"], finish, strict=True))
    ]
    print("\n".join(lines[:_SHOWN]))
    if len(lines) > _SHOWN:
        print(f"… and {len(lines) - _SHOWN:,} more; --out FILE writes them all")


def _write_finishes(
    out: Path,
    model: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
    finishes: Sequence[Any],
    errors: Sequence[CaseErrors],
) -> None:
    import json
    from dataclasses import asdict

    document = {
        "model": dict(model),
        "cases": [
            {"name": case.get("name", f"case {n}"), "finish_s": finish.tolist()}
            for n, (case, finish) in enumerate(zip(cases, finishes, strict=True))
        ],
        "errors": [asdict(row) for row in errors],
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
