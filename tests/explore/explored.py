"""Questions to worlds that are explored."""

import yaml

from simfed.explore import ExploredWorld, play


def explore(path, scenario):
    """The world of a scenario, whose file it writes."""
    path.write_text(yaml.safe_dump(scenario))
    return ExploredWorld(path)


def answer(world, setting=None, shown=(1, 99), **more):
    """The last part of an answer, with its bars and its rows."""
    parts = []
    glance = play(
        world, {"setting": setting or {}, "shown": shown, **more}, parts.append
    )
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    gantt = next(part["gantt"] for part in parts if "gantt" in part)
    return {**parts[-1], "gantt": gantt, "glance": glance}


def read_curve(run):
    tested = run.prototypes.query("prototype == 'a'").dropna(subset="test_accuracy")
    return tested[["round", "test_accuracy"]].values.tolist()
