"""`simfed regret`: what every arm would have brought, on a sample of a run's rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.inspect import (
    AllowPlugins,
    Imports,
    Overrides,
    Quiet,
    Rounds,
    Seed,
    Workers,
    limit_processes,
    read_overrides,
)
from simfed.cli.run import A_CLIENT_AT_A_TIME
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.errors import InputError, check_known

if TYPE_CHECKING:
    from simfed.study.regret import Regret


def regret(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO")],
    every: Annotated[int, typer.Option(help="Rounds between two samples.")] = 10,
    policies: Annotated[
        str | None,
        typer.Option(help="Kinds to compare, or `all` that learn; the scenario's own if omitted."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs and rewards.csv; none if omitted.")
    ] = None,
    seed: Seed = None,
    rounds: Rounds = None,
    set_: Overrides = None,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Play a scenario, and now and then all other arms too.

    In every so many rounds each client plays every other arm, in forks of the run.
    """
    import pandas as pd

    from simfed.experiment.progress import RunProgress
    from simfed.experiment.running import count_useful_workers
    from simfed.report.export import write_table
    from simfed.scenario import load_scenario
    from simfed.study.regret import regret_of, run_with_oracle

    pairs = read_overrides(set_, seed=seed, rounds=rounds)
    base = load_scenario(scenario, pairs, allow_plugins=allow_plugins)
    workers = limit_processes(
        "--workers", workers, count_useful_workers(base), each=A_CLIENT_AT_A_TIME, quiet=quiet
    )
    kinds = _choose_kinds(policies)
    loaded = {base.policy.kind: base}
    if kinds:
        reward = base.policy.reward.model_dump(mode="json")
        policies_of = {kind: ("policy", {"kind": kind, "reward": reward}) for kind in kinds}
        loaded = {
            kind: load_scenario(scenario, [*pairs, pair], allow_plugins=allow_plugins)
            for kind, pair in policies_of.items()
        }
    regrets: dict[str, Regret] = {}
    tables = []
    with sigterm_is_ctrl_c():
        for kind, of_kind in loaded.items():
            progress = RunProgress(of_kind.rounds, quiet=quiet, title=f"{base.name}: {kind}")
            _, samples = run_with_oracle(
                of_kind,
                None if out is None else out / kind,
                every=every,
                source=scenario,
                workers=workers,
                progress=progress,
            )
            if not len(samples):
                expected = f"rounds in which somebody chooses, at {every}, {2 * every}, …"
                raise InputError(expected, where="--every", got=every)
            regrets[kind] = regret_of(samples)
            tables.append(samples.assign(policy=kind))
            if out is not None:
                write_table(pd.concat(tables), out / "rewards.csv")
    typer.echo("\n".join(_format_table(regrets)))


def _choose_kinds(policies: str | None) -> list[str]:
    from simfed.ground.registry import registry

    kinds = {name: registry("policy").get(name) for name in registry("policy").names()}
    # one that sets K has no arms to compare
    learning = [
        name
        for name, kind in kinds.items()
        if getattr(kind, "learns", True) and not hasattr(kind, "ends")
    ]
    if policies is None:
        return []
    if policies == "all":
        return learning
    asked = [kind.strip() for kind in policies.split(",")]
    for kind in asked:
        check_known(kind, learning, "all, or kinds that learn:", where="--policies")
    return asked


_HEAD = ("policy", "pulls", "played", "best", "regret", "95 %", "random", "fixed", "best arm")


def _format_table(regrets: dict[str, Regret]) -> list[str]:
    """A table for terminals and documents, the smallest regret first."""
    rows = [_HEAD]
    for kind, regret in sorted(regrets.items(), key=lambda item: item[1].regret):
        rewards = f"{regret.played:+.4f}", f"{regret.best:+.4f}"
        interval = f"[{regret.low:.4f}, {regret.high:.4f}]"
        fixed = f"{regret.fixed:.4f} ({regret.fixed_arm})"
        regrets_of = f"{regret.regret:.4f}", interval, f"{regret.random:.4f}", fixed
        rows.append((kind, f"{regret.pulls}", *rewards, *regrets_of, f"{regret.hits:.0%}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (map(str.ljust, row, widths) for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]
