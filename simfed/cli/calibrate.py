"""`simfed calibrate`: measures this machine, fits, shows and checks a profile."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simfed.cli.inspect import Imports
from simfed.cli.terminal import print_columns, show_progress
from simfed.ground.errors import BrokenInvariant, InputError, check_known
from simfed.ground.inputs import read_bytes
from simfed.ground.writing import put_output, writing

if TYPE_CHECKING:
    from simfed.calibrate.check import ProfileCheck
    from simfed.calibrate.profiles import Calibration
    from simfed.device.profile import Profile
    from simfed.device.table import MeasuredRows

app = typer.Typer(
    no_args_is_help=True,
    help="Measure a device, and fit a profile with its errors to it.",
)

Tables = Annotated[
    list[Path],
    typer.Argument(metavar="TABLE", help="Measurements in CSV, one file or more."),
]
ProfileName = Annotated[
    str, typer.Argument(metavar="PROFILE", help="A profile's name or file.")
]

_CIFAR_MODELS = ("resnet18", "wresnet40-2")


@app.command()
def measure(
    out: Annotated[Path, typer.Option(help="CSV table to write, or to go on with.")],
    models: Annotated[
        str,
        typer.Option(
            help="Comma-separated; MODEL or MODEL@DATASET for the shape of samples."
        ),
    ] = "lenet5-half,lenet5",
    k: Annotated[str, typer.Option(help="Entries kept.")] = "500,1000,2000,5000,10000",
    batch: Annotated[
        str, typer.Option(help="Batch sizes of a training step.")
    ] = "8,16,32,64",
    samples: Annotated[
        str,
        typer.Option(help="Public samples of inference and of a distillation step."),
    ] = "64,128,256,512",
    strategies: Annotated[
        str,
        typer.Option(
            help="Codecs; a name without options is measured with its defaults and "
            "stands for all."
        ),
    ] = "top-k,random-k,periodic-k",
    only: Annotated[
        str | None,
        typer.Option(help="Kinds of work, if not all: training, compression, …"),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch.")] = 1,
    paced: Annotated[
        float,
        typer.Option(
            help="Seconds of rest before each call, after which caches are cold, as in "
            "a round; 0: call after call."
        ),
    ] = 0.02,
    steps: Annotated[
        int,
        typer.Option(
            help="Local steps in a row that make one measurement of training."
        ),
    ] = 1,
    repeat: Annotated[int, typer.Option(help="Measurements per case, in all.")] = 20,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    import_: Imports = None,
) -> None:
    """Time the learning side's own functions on this machine.

    Ctrl-C keeps what was measured; the same command goes on. A larger --repeat adds
    some in a new session, which tells the fit how much processes differ.
    """
    from simfed.calibrate.measure import MEASURED, MeasurementPlan
    from simfed.calibrate.measure import measure as run

    plan = MeasurementPlan(
        models=tuple(_parse_model(name) for name in _split_names(models, "--models")),
        strategies=tuple(_split_names(strategies, "--strategies")),
        ks=_parse_numbers(k, "--k"),
        batches=_parse_numbers(batch, "--batch"),
        samples=_parse_numbers(samples, "--samples"),
        quantities=tuple(_split_names(only, "--only")) if only else MEASURED,
        repeat=repeat,
        threads=threads,
        device=device,
        pace_s=paced,
        steps=steps,
    )
    with show_progress(_say_tenth, "MofNCompleteColumn") as tell:
        new = run(
            plan,
            out,
            progress=lambda done, total, what: tell("measurements", done, total),
        )
    for note in plan.left_out():
        print(f"note: {note}")
    print(
        f"{out}: {new} new measurements"
        if new
        else f"{out}: complete, nothing to measure"
    )


@app.command()
def fit(
    *,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TABLE", help="Measurements in CSV, unless --from says a run."
        ),
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="A deployed run: its own seconds are the measurements. Several, of "
            "the same devices with other numbers of local steps, tell what the "
            "beginning of training takes.",
        ),
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Of these rounds of the run alone."),
    ] = None,
    host: Annotated[
        bool,
        typer.Option(
            help="Also what the run's hosts took beside the phases, as handling."
        ),
    ] = True,
    out: Annotated[Path, typer.Option(help="Profile to write (YAML).")],
    kind: Annotated[
        str, typer.Option(help="law: fitted laws; table: the medians, interpolated.")
    ] = "law",
    name: Annotated[
        str | None, typer.Option(help="The profile's name; the file's.")
    ] = None,
    description: Annotated[
        str | None, typer.Option(help="One line about the device.")
    ] = None,
    import_: Imports = None,
) -> None:
    """Fit a profile to measurements, and report its errors.

    It says whether a table of medians would be the better choice.

    Of runs, the measurements go to a table beside the profile, and so does the first
    one's scenario with the profile, the rates and speeds that its groups came to, and
    what its server took: OUT.csv and OUT.scenario.yaml.
    """
    from simfed.calibrate.from_run import MeasuredRun, centre_rows, join_rows
    from simfed.calibrate.profiles import fit_profile, format_profile
    from simfed.calibrate.works import add_works, find_works
    from simfed.device.table import read_table
    from simfed.report.timeline import parse_rounds

    check_known(kind, ("law", "table"), where="--kind")
    if (not from_) == (not tables):
        raise InputError(
            "tables, or --from RUN", where="fit", problem="there is nothing to fit"
        )
    if not from_ and rounds is not None:
        raise InputError(
            where="--rounds", problem="without --from RUN this says nothing"
        )
    choose = None if rounds is None else partial(parse_rounds, rounds)
    measured = [MeasuredRun(run, choose) for run in from_ or ()]
    beside = (
        [_write_text(out.with_suffix(".csv"), join_rows(measured, host))]
        if measured
        else []
    )
    table = read_table(tables or beside)
    works = find_works(table)
    for run in measured:
        add_works(works, run.works())
    calibration = fit_profile(table, kind=kind, name=name or out.stem, models=works)
    document = dict(calibration.document)
    if measured:
        document = centre_rows(document, table)
    if description:
        head = {"kind": kind, "name": document["name"], "description": description}
        document = {**head, **document}
    _write_text(out, format_profile(document, _HEADERS[kind]))
    if measured:
        noisy = set(document.get("noise", {}))
        noise = {"training", "compression", *(["handling"] if host else [])} <= noisy
        text = measured[0].scenario(name or out.stem, noise)
        beside.append(_write_text(out.with_suffix(".scenario.yaml"), text))
    _print_fit(calibration)
    for note in calibration.notes:
        print(f"note: {note}")
    print(f"{out}: {kind} profile; {_format_advice(calibration, kind)}")
    for path in beside:
        print(path)


@app.command()
def check(
    profile: ProfileName,
    tables: Tables,
    bound: Annotated[
        str | None,
        typer.Option(
            help="Largest allowed median error, such as 10%; else exit code 3."
        ),
    ] = None,
    import_: Imports = None,
) -> None:
    """Compare a profile with measurements that it was not fitted to."""
    from simfed.calibrate.check import compare
    from simfed.device.table import read_table

    largest = parse_share(bound, "--bound") if bound is not None else None
    table = read_table(tables)
    loaded = _load_profile(profile, table)
    comparison = compare(loaded, table)
    _print_check(comparison)
    for warning in loaded.warnings:
        print(f"warning: {warning}")
    for path in _find_fitted(loaded, tables):
        print(
            f"warning: {path} is what the profile was fitted to: new measurements will "
            "be further off"
        )
    print(comparison.verdict)
    if largest is not None and comparison.median_error > largest:
        raise BrokenInvariant(
            f"{loaded.name}: the median error is {comparison.median_error:.1%}, above "
            f"the bound of {largest:.1%}"
        )


@app.command()
def show(
    profile: ProfileName,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TABLE",
            help="Measurements to draw as points; the profile's own files if they lie "
            "beside it.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Picture (PNG, SVG, PDF); PROFILE.png")
    ] = None,
    import_: Imports = None,
) -> None:
    """Draw a profile's curves over the points, and list them.

    The curves have their intervals.
    """
    from simfed.calibrate.works import find_works
    from simfed.device.profile import ANY
    from simfed.device.table import read_table
    from simfed.report.calibration import profile_figure
    from simfed.report.pictures import save_picture

    loaded = _load_profile(profile, None)
    files = table or _find_files(loaded)
    points = read_table(files) if files else None
    if points is not None:
        loaded.models.update(find_works(points))
    _print_profile(loaded)
    if out is None and all(model == ANY for _, model, _ in loaded.curves):
        return  # laws across models have no picture
    target = out if out is not None else Path(f"{loaded.name}.png")
    print(save_picture(profile_figure(loaded, points), target))


# ---- arguments -----------------------------------------------------------------------


def _write_text(path: Path, text: str) -> Path:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return put_output(path, text)


def _split_names(text: str, where: str) -> list[str]:
    from simfed.compress.choice import split_list

    names = split_list(text)
    if not names:
        raise InputError("names separated by commas", where=where, got=text)
    return names


def _parse_numbers(text: str, where: str) -> tuple[int, ...]:
    names = _split_names(text, where)
    try:
        return tuple(int(name.replace("_", "")) for name in names)
    except ValueError:
        allowed = "whole numbers of at least 1, separated by commas"
        raise InputError(allowed, where=where, got=text) from None


def _parse_model(name: str) -> tuple[str, str]:
    model, at, dataset = name.partition("@")
    return model, dataset if at else (
        "cifar10" if model in _CIFAR_MODELS else "mnist-mini"
    )


def parse_share(text: str, where: str) -> float:
    """Return a relative error: `10%` or `0.1`."""
    try:
        value = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:  # 10 is more often a forgotten % than a bound of 1000 %
        raise InputError(
            "a relative error up to 100%, such as 10% or 0.1", where=where, got=text
        )
    return value


def _load_profile(profile: str, table: MeasuredRows | None) -> Profile:
    from simfed.calibrate.works import find_works
    from simfed.device.load import load_profile, profile_folders

    loaded = load_profile(profile, profile_folders(Path()))
    if table is not None:
        loaded.models.update(find_works(table))
    return loaded


def _find_fitted(profile: Profile, tables: list[Path]) -> list[Path]:
    """Tables of these that the profile says it was made from."""
    digests = {digest for _, digest in _list_files(profile)}
    return [path for path in tables if _sha256(path) in digests]


def _find_files(profile: Profile) -> list[Path]:
    """Return the measurements that a profile names, where they lie beside it."""
    files = [
        (Path(profile.source).parent / name, digest)
        for name, digest in _list_files(profile)
    ]
    there = all(
        path.is_file() and digest in (None, _sha256(path)) for path, digest in files
    )
    return [path for path, _ in files] if there else []


def _list_files(profile: Profile) -> list[tuple[str, str | None]]:
    """Return (name, SHA-256 if it is said) of the tables a profile was made from."""
    files = profile.provenance.get("files", [])
    return [
        (f, None) if isinstance(f, str) else (f["name"], f.get("sha256")) for f in files
    ]


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


# ---- what is said --------------------------------------------------------------------

_HEADERS = {
    "law": "Laws fitted by `simfed calibrate fit`: seconds = law(parameters, size). "
    "Edit them as you like;\n"
    "errors are relative, intervals are for medians of new measurements. See "
    "`simfed help devices`.",
    "table": "Medians of measured rows, by `simfed calibrate fit`: exact at these "
    "rows, monotone log-log\n"
    "interpolation between them, with a warning beyond them. See "
    "`simfed help devices`.",
}


def _format_advice(calibration: Calibration, kind: str) -> str:
    fitted = [c for c in calibration.curves if c.candidate is not None]
    poor = [c for c in fitted if c.prefers_table and c.key[1] != "any"]
    if calibration.recommended == kind:
        return "recommended for these measurements"
    if kind == "table":
        return (
            "no law misses a size by more than 10 % or what sessions differ by, so "
            "`--kind law` would serve as well and is smoother"
        )
    if not poor:
        return "some curves have too few sizes for a law and keep their rows"
    if not any(c.missed for c in poor):
        return (
            "`--kind table` is recommended, as the error of a law cannot be known "
            "(see the note)"
        )
    worst = max(poor, key=lambda c: c.missed)
    return (
        "`--kind table` is recommended: the law misses "
        f"{' '.join(filter(None, worst.key))} by {worst.missed:.0%} at a measured size"
    )


def _print_fit(calibration: Calibration) -> None:
    headers = (
        *("work", "model", "strategy", "law"),
        *("sizes", "error", "worst", "left out", "in interval"),
    )
    rows = []
    for c in calibration.curves:
        law, in_sample, worst, left_out = "(rows)", None, None, c.other_model
        if (fitted := c.candidate) is not None:
            law, in_sample, worst = fitted.law.name, fitted.in_sample, fitted.worst
            if left_out is None and len(fitted.held_out):
                left_out = fitted.cross_validated
        shares = map(_format_share, (in_sample, worst, left_out, c.coverage))
        rows.append((*c.key, law, str(c.sizes), *shares))
    print_columns(headers, rows, words=4)
    print(
        "error, worst: relative, at measured sizes; left out: mean error at sizes left "
        "out of the fit (any: at models left out); in interval: left-out medians in "
        "their 90 % interval"
    )


def _print_check(comparison: ProfileCheck) -> None:
    headers = (
        *("work", "model", "strategy", "taken from"),
        *("sizes", "median error", "worst", "at", "in interval"),
    )
    rows = []
    for key in dict.fromkeys(point.key for point in comparison.points):
        points = [p for p in comparison.points if p.key == key]
        part = type(comparison)(tuple(points))
        worst = f"{part.worst.error:+.1%}", f"{part.worst.size:,.0f}"
        source = ", ".join(dict.fromkeys(point.source for point in points))
        count, median = str(len(points)), _format_share(part.median_error)
        rows.append((*key, source, count, median, *worst, _format_share(part.coverage)))
    print_columns(headers, rows, words=4)


def _print_profile(profile: Profile) -> None:
    from simfed.device.curve import Constant, Fitted
    from simfed.ground.units import counted, format_duration

    headers = ("work", "model", "strategy", "curve", "from", "to", "left out", "spread")
    rows = []
    for (quantity, model, strategy), curve in profile.curves.items():
        cells: list[Any]
        if isinstance(curve, Constant):
            cells = [format_duration(curve.seconds), "", "", None, None]
        elif isinstance(curve, Fitted):
            low, high = next(iter(curve.valid.values()), ("", ""))
            error = curve.error.get(
                "other_model" if model == "any" else "cross_validated"
            )
            cells = [
                curve.law.name,
                _format_amount(low),
                _format_amount(high),
                error,
                curve.spread,
            ]
        else:
            ends = _format_amount(curve.sizes[0]), _format_amount(curve.sizes[-1])
            spread = profile.uncertainty.get(quantity)
            cells = [counted(len(curve.sizes), "row"), *ends, None, spread]
        shares = map(_format_share, cells[3:])
        rows.append((quantity, model, strategy, *cells[:3], *shares))
    print_columns(headers, rows, words=4)
    described = (
        profile.provenance.get("description") or profile.provenance.get("cpu") or ""
    )
    print(f"{profile.name}: {profile.kind} profile; {described}".rstrip("; "))


def _format_amount(x: float | str) -> str:
    if isinstance(x, str):
        return x
    return f"{x:,.4g}" if x < 1e4 else f"{x:,.0f}"


def _format_share(x: float | None) -> str:
    return "" if x is None else f"{x:.1%}"


def _say_tenth(what: str, before: int, done: int, total: int | None) -> str | None:
    """Return a line at every tenth of the work."""
    if not total or done * 10 // total == before * 10 // total:
        return None
    return f"{done} of {total} {what}"
