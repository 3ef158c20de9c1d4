"""`simfed run` and `simfed verify`: make a run directory, and check one."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import typer
from typer.core import TyperCommand
from typing_extensions import override

from simfed.cli.inspect import (
    AllowPlugins,
    Dask,
    Device,
    Figures,
    Imports,
    Overrides,
    Overwrite,
    Quiet,
    Resume,
    Rounds,
    RunFolder,
    ScenarioFile,
    Seed,
    TimeOnly,
    Workers,
    limit_processes,
    load,
)
from simfed.cli.notes import shorten_warnings
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.cores import most_processes
from simfed.ground.errors import BrokenInvariant, InputError
from simfed.ground.units import counted, format_duration, parse_size

if TYPE_CHECKING:
    from simfed.experiment.progress import RunProgress
    from simfed.experiment.running import RunResult
    from simfed.explore.watch import PageProcess
    from simfed.scenario import Scenario

A_CLIENT_AT_A_TIME = "each client that takes part at a time"


class RunOptions(NamedTuple):
    """The options of a command line for the run directory that it makes.

    `serve`, `deploy` and `run` have them; `make_run` reads them.
    """

    out: str | None
    resume: bool
    overwrite: bool
    figures: bool
    quiet: bool
    watcher: PageProcess | None = None


class Player(Protocol):
    """A function that plays a scenario into a folder."""

    def __call__(
        self, folder: Path, /, *, progress: RunProgress, resume: bool, overwrite: bool
    ) -> RunResult:
        """Play the run into `folder`."""
        ...


def run(
    scenario: ScenarioFile,
    out: RunFolder = None,
    seed: Seed = None,
    rounds: Rounds = None,
    set_: Overrides = None,
    time_only: TimeOnly = False,
    device: Device = "cpu",
    workers: Workers = None,
    dask: Dask = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Of what clients keep, such as 4GB; what is more lies in files. No "
            "result depends "
            "on it.",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    figures: Figures = True,
    quiet: Quiet = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print where the host's time went.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Open its page, which goes on as the run does."),
    ] = False,
) -> None:
    """Run a scenario and write its run directory."""
    from simfed.experiment import running as experiment

    watcher = None
    if watch:
        from simfed.explore.watch import PageProcess

        if time_only:
            raise InputError("a run that learns", where="--watch", got="--time-only")
        watcher = PageProcess(allow_plugins=allow_plugins)
    if device not in ("cpu", "cuda"):
        raise InputError("cpu or cuda", where="--device", got=device)
    loaded = load(scenario, set_, allow_plugins, seed=seed, rounds=rounds)
    most, silent = experiment.count_useful_workers(loaded), quiet or time_only
    if dask is not None and workers is not None:
        problem = "no --workers beside a Dask cluster, which has its own"
        raise InputError(problem, where="--workers", got=workers)
    workers = limit_processes(
        "--workers", workers, most, each=A_CLIENT_AT_A_TIME, quiet=silent
    )
    play = partial(
        experiment.run,
        loaded,
        source=scenario,
        workers=workers if dask is None else dask,
        device=device,
        memory=None if memory is None else parse_size(memory, where="--memory"),
        time_only=time_only,
    )
    try:
        options = RunOptions(out, resume, overwrite, figures, quiet, watcher)
        result = make_run(loaded, options, play)
        if timings:
            _print_timings(result)
        if watcher is not None:
            watcher.stay()
    finally:
        if watcher is not None:
            watcher.close()


def make_run(
    loaded: Scenario, options: RunOptions, play: Player, *, seconds: str = "simulated"
) -> RunResult:
    """Play a scenario into its folder, draw its pictures, and print its summary.

    Args:
        loaded: the scenario.
        options: of the command line.
        play: plays it into the folder.
        seconds: the word before the time in progress, `simulated` or `measured`.

    Raises:
        InputError: `--resume` without `--out`, or an empty `--out`.
        SimfedError: what `play` raises.
    """
    from simfed.experiment.progress import RunProgress

    out, resume, overwrite, figures, quiet, watcher = options
    if resume and out is None:
        raise InputError(
            "--out DIR of the run to go on with",
            where="--resume",
            problem="no run is named",
        )
    if out is not None and not out.strip():
        raise InputError("a folder's name", where="--out", got=out)
    clients = counted(loaded.client_count, "client")
    length = counted(loaded.rounds, "round")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_for(out, loaded.name, overwrite))
        stack.enter_context(sigterm_is_ctrl_c())
        title = f"{loaded.name}: {clients}, {length} → {folder}"
        begins = None if watcher is None else partial(watcher.start, folder)
        progress = RunProgress(
            loaded.rounds, quiet=quiet, title=title, seconds=seconds, begins=begins
        )
        result = play(folder, progress=progress, resume=resume, overwrite=overwrite)
        drawn = draw(result, folder) if figures else []
    if not quiet:
        print_summary(result, drawn)
    return result


def verify(
    folder: Annotated[Path, typer.Argument(metavar="RUN")],
    recompute: Annotated[
        int | None,
        typer.Option(
            metavar="[N]",
            help="Learn again: everything, or up to the last of N sampled rounds.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Learning processes of --recompute; no result depends on it."
        ),
    ] = None,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
) -> None:
    """Check a run directory and play its clock again.

    Every invariant of its tables is checked; exit code 3 if something differs.
    """
    from simfed.verify.run import verify as verify_run

    if recompute is not None and recompute < 1:
        raise InputError(
            "a whole number of at least 1", where="--recompute", got=recompute
        )
    workers = limit_processes("--workers", workers, most_processes())
    broken, repeated = verify_run(folder, allow_plugins=allow_plugins), ""
    if not broken and recompute is not None:
        from simfed.verify import again

        played = again.recompute(folder, recompute, workers=workers)
        broken += played
        repeated = played.said
    if broken:
        raise BrokenInvariant("\n".join(f"{folder}: {sentence}" for sentence in broken))
    typer.echo(f"{folder}: all invariants hold")
    if repeated:
        typer.echo(f"{folder}: {repeated} played again: the same")


class Verify(TyperCommand):
    """`--recompute` may stand alone, and then means every round."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--recompute" in args:
            after = args.index("--recompute") + 1
            if not re.fullmatch(r"[+-]?\d+", "".join(args[after : after + 1])):
                args = [*args[:after], str(sys.maxsize), *args[after:]]
        return super().parse_args(ctx, args)


def print_summary(result: RunResult, drawn: list[str]) -> None:
    """Print a run's summary, its warnings, and where its files are."""
    from rich.console import Console

    from simfed.report.summary import build_summary_table

    console = Console()
    console.print(build_summary_table(result))
    for warning in shorten_warnings(
        result.manifest["warnings"], f"{result.path}/manifest.json"
    ):
        console.print(
            f"warning: {warning}", style="yellow", markup=False, highlight=False
        )
    console.print(
        f"{result.path}: {', '.join([*drawn, 'tables'])}", markup=False, highlight=False
    )
    console.print(f"more: simfed report {result.path}", markup=False, highlight=False)


def _print_timings(result: RunResult) -> None:
    """Print what each part of the work took of the host's time, the longest first."""
    wall = dict(result.manifest["wall_s"])
    total = wall.pop("total")
    width = max(len(name) for name in wall)
    for name, seconds in sorted(wall.items(), key=lambda item: -item[1]):
        typer.echo(
            f"{name:<{width}}  {format_duration(seconds):>12}  {seconds / total:6.1%}"
        )
    typer.echo(f"{'total':<{width}}  {format_duration(total):>12}")


def draw(result: RunResult, folder: Path) -> list[str]:
    """Draw the run's pictures into its folder, and return the names of the files."""
    from simfed.report.run_pictures import draw_run

    return [path.name for path in draw_run(result, folder)]


def _make_file_name(name: str) -> str:
    """Return a scenario's name as one path component of 80 bytes at the most."""
    allowed = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-")
    return allowed.encode()[:80].decode(errors="ignore") or "run"


@contextlib.contextmanager
def folder_for(out: str | None, name: str, overwrite: bool) -> Iterator[Path]:
    """Yield the folder of a run.

    It is the one that the user named, else `runs/NAME` where that is overwritten, else
    a new one, which goes again where nothing was written to it.

    Args:
        out: the user's.
        name: the scenario's.
        overwrite: a run in it is replaced.
    """
    unnamed = Path("runs") / _make_file_name(name)
    if out is not None or overwrite:
        yield unnamed if out is None else Path(out)
        return
    folder = _make_free_folder(unnamed)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # it goes if nothing was written there
            folder.rmdir()


def _make_free_folder(folder: Path) -> Path:
    """Make `folder`, or the first of `folder-2`, `folder-3`, … that is not there."""
    candidate = folder
    for n in itertools.count(2):
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            candidate = folder.with_name(f"{folder.name}-{n}")
        else:
            break
    return candidate
