"""`simfed cache`: the kept learning trajectories."""

from __future__ import annotations

from typing import Annotated

import typer

from simfed.ground.units import counted, format_bytes

app = typer.Typer(help="Learning kept for replay.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List what is kept: size, states, last use, what was learned."""
    import time

    from simfed.ground.units import format_duration
    from simfed.replay import TrajectoryStore

    store = TrajectoryStore()
    trajectories = store.kept()
    for one in trajectories:
        setup = one.about.get("scenario", {})
        models = sorted(
            {
                prototype.get("model", name)
                for name, prototype in setup.get("prototypes", {}).items()
            }
        )
        clients = len(one.about.get("clients", {}).get("order", ()))
        what = (
            f"{setup.get('dataset', {}).get('name')}, {', '.join(models)}, "
            f"{counted(clients, 'client')}, seed {setup.get('seed')}"
        )
        age = format_duration(max(0.0, time.time() - one.used_at_wall))
        typer.echo(
            f"{one.key[:12]}  {format_bytes(one.size_bytes):>8}  {one.steps:>6,} steps "
            f" {one.states:>3} states  used {age} ago  {what}"
        )
    total = sum(one.size_bytes for one in trajectories)
    typer.echo(
        f"{store.folder}: {counted(len(trajectories), 'trajectory', 'trajectories')}, "
        f"{format_bytes(total)} of at most {format_bytes(store.limit_bytes)} "
        "(SIMFED_CACHE, SIMFED_CACHE_LIMIT)"
    )


@app.command()
def clear(
    key: Annotated[
        str | None,
        typer.Argument(help="The beginning of a key; everything if omitted."),
    ] = None,
) -> None:
    """Delete kept trajectories; nothing but time is lost."""
    from simfed.replay import TrajectoryStore

    store = TrajectoryStore()
    gone = counted(store.clear(key), "trajectory", "trajectories")
    typer.echo(f"{store.folder}: {gone} deleted")
