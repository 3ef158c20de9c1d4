"""`simfed regret`: what every arm would have brought, on a sample of a run's rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simfed.cli.inspect import AllowOutside, AllowPlugins, Imports, Overrides, at_most
from simfed.cli.run import A_CLIENT_AT_A_TIME
from simfed.experiment.interrupt import sigterm_is_ctrl_c
from simfed.ground.errors import InputError, listed

if TYPE_CHECKING:
    from simfed.study.regret import Regret

__all__ = ["regret"]


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
    seed: Annotated[int | None, typer.Option(help="In place of the scenario's seed.")] = None,
    rounds: Annotated[int | None, typer.Option(help="In place of the scenario's rounds.")] = None,
    set_: Overrides = None,
    allow_outside: AllowOutside = False,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    workers: Annotated[
        int | None, typer.Option(help="Learning processes; the results do not depend on it.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Play a scenario, and in every so many rounds all other arms of every client, in forks of
    it."""
    import pandas as pd

    from simfed.experiment.progress import RunProgress
    from simfed.experiment.running import most_workers
    from simfed.scenario import load_scenario, parse_assignment
    from simfed.study.regret import regret_of, run_with_oracle

    pairs: list[tuple[str, Any]] = [parse_assignment(text) for text in set_ or []]
    pairs += [(k, v) for k, v in (("seed", seed), ("rounds", rounds)) if v is not None]
    own = load_scenario(scenario, pairs, allow_outside=allow_outside, allow_plugins=allow_plugins)
    workers = at_most("--workers", workers, most_workers(own), each=A_CLIENT_AT_A_TIME, quiet=quiet)
    kinds = _kinds(policies)
    loaded = {own.policy.kind: own}
    if kinds:
        reward = own.policy.reward.model_dump(mode="json")
        loaded = {
            kind: load_scenario(
                scenario,
                [*pairs, ("policy", {"kind": kind, "reward": reward})],
                allow_outside=allow_outside,
                allow_plugins=allow_plugins,
            )
            for kind in kinds
        }
    found: dict[str, Regret] = {}
    tables = []
    with sigterm_is_ctrl_c():
        for kind, of_kind in loaded.items():
            _, samples = run_with_oracle(
                of_kind, None if out is None else out / kind, every=every, source=scenario,
                workers=workers,
                progress=RunProgress(of_kind.rounds, quiet=quiet, title=f"{own.name}: {kind}"),
            )  # fmt: skip
            if not len(samples):
                raise InputError(
                    f"rounds in which somebody chooses, at {every}, {2 * every}, …",
                    where="--every",
                    got=every,
                )
            found[kind] = regret_of(samples)
            tables.append(samples.assign(policy=kind))
            if out is not None:
                pd.concat(tables).to_csv(out / "rewards.csv", index=False)
    typer.echo("\n".join(_lines(found)))


def _kinds(policies: str | None) -> list[str]:
    from simfed.ground.registry import registry

    known = registry("policy")
    kinds = {name: known.get(name) for name in known.names()}
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
        if kind not in learning:
            raise InputError(
                f"all, or kinds that learn: {listed(learning)}", where="--policies", got=kind
            )
    return asked


_HEAD = ("policy", "pulls", "played", "best", "regret", "95 %", "random", "fixed", "best arm")


def _lines(found: dict[str, Regret]) -> list[str]:
    """A table for terminals and documents, the smallest regret first."""
    rows = [_HEAD]
    for kind, of in sorted(found.items(), key=lambda item: item[1].regret):
        rows.append((
            kind, f"{of.pulls}", f"{of.played:+.4f}", f"{of.best:+.4f}", f"{of.regret:.4f}",
            f"[{of.low:.4f}, {of.high:.4f}]", f"{of.random:.4f}",
            f"{of.fixed:.4f} ({of.fixed_arm})", f"{of.hits:.0%}",
        ))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows]  # fmt: skip
