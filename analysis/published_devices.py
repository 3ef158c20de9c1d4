"""Profiles of devices from what others published, and the tables of
docs/published-devices.md.

    # writes both
    python analysis/published_devices.py
    # says whether they are as the numbers make them
    python analysis/published_devices.py --check

Nobody publishes what a profile needs, the seconds of a training step by model and
batch. What is published are steps of one or two networks, forward passes, or matrix
products. A profile made of these is one law: seconds = overhead + FLOPs / rate, with a
factor that covers, nine times in ten, what its derivation does not know. The numbers
stand in analysis/published_devices.yaml.
"""

from __future__ import annotations

import math
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pages import markdown, put_between

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = Path(__file__).with_suffix(".yaml")
PAGE = ROOT / "docs" / "published-devices.md"
MEASURED = ROOT / "calibration" / "x86-2core-vm.yaml"

LEAST_FACTOR = 2.0
"""Nothing derived from other work than training steps of the models at hand is known
better."""
SHARE_OF_PRODUCT = 0.78
"""Of the rate of a 32-bit matrix product, what a training step of ResNet-18 reached on
one thread of the machine of `xeon-2core-vm` (four times 0.71 to 0.82, in processor
time)."""
STEP_OPERATIONS = 40
"""Of a training step of LeNet-5: about 13 forward, 20 backward, the rest the
optimiser's."""
NINETY = 1.645
"""Standard deviations of a normal distribution that hold 90 % of it on both sides."""
STEP = 6
"""FLOPs of a training step for each multiply-add of a forward pass: forward, and twice
backward."""


@dataclass(frozen=True)
class Law:
    """seconds = overhead_s + FLOPs · per_flop of a training step, and how far it may be
    off.
    """

    overhead_s: float
    per_flop: float
    factor: float
    flops: tuple[float, float]
    """The range of the work that it was made of."""
    made: str
    """How, in words."""


def law_of(name: str, devices: dict[str, Any]) -> Law:
    """The law of a device, by the best of what was published about it."""
    device = devices[name]
    if name == "raspberry-pi-5":
        return _scaled(
            device, law_of("raspberry-pi-4", devices), devices["raspberry-pi-4"]
        )
    if "matmul_gflops" in device:
        return _from_product(
            device, law_of("jetson-nano", devices), devices["jetson-nano"]
        )
    return _from_steps(device) if "steps" in device else _from_forward(device)


def _from_forward(device: dict[str, Any]) -> Law:
    """Forward passes, each network's own rate, times what a step costs more than three
    of them.
    """
    rows = list(_networks(device["forward"]).values())
    costs = [math.log(seconds / (2 * macs)) for macs, seconds in rows]
    middle, spread = _mean_and_sd(costs)
    more, of_more = step_over_forward()
    flops = [2 * macs for macs, _ in rows]
    return Law(
        0.0,
        math.exp(middle) * more,
        _factor(spread, of_more),
        (min(flops), max(flops) * 3),
        f"{len(rows)} networks' forward passes (geometric mean), a training step taken "
        f"as {3 * more:.1f} of them",
    )


def _from_steps(device: dict[str, Any]) -> Law:
    """Timed training steps.

    The overhead by what a network of many small operations takes.
    """
    overhead_s = STEP_OPERATIONS * _per_operation(device) if "lean" in device else 0.0
    work = [_work(step) for step in device["steps"]]
    costs = [
        math.log((seconds - overhead_s * ("batch" in step)) / flops)
        for (flops, seconds), step in zip(work, device["steps"], strict=True)
    ]
    middle, spread = _mean_and_sd(costs)
    others = 0.0
    if "forward" in device:  # how much networks differ on this processor
        rates = [
            math.log(s / (2 * macs))
            for macs, s in _networks(device["forward"]).values()
            if macs > 7e8
        ]
        others = _mean_and_sd(rates)[1]
    unknown = math.log(1.5) if any("sd" in step for step in device["steps"]) else 0.0
    count = len(work)
    made = f"{count} timed training step{'s' * (count > 1)}"
    return Law(
        overhead_s,
        math.exp(middle),
        _factor(spread, others, unknown),
        (min(flops for flops, _ in work), max(flops for flops, _ in work)),
        made if count == 1 else f"{made} (geometric mean)",
    )


def _scaled(device: dict[str, Any], base: Law, sister: dict[str, Any]) -> Law:
    """A faster sister, between two ratios that were measured on both."""
    ratios = [device[key]["value"] / sister[key]["value"] for key in KINDRED]
    ratio = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return Law(
        base.overhead_s / ratio,
        base.per_flop / ratio,
        math.exp(math.hypot(math.log(base.factor), math.log(max(ratios) / ratio))),
        base.flops,
        f"the Raspberry Pi 4's law divided by {ratio:.2f}, the middle of "
        f"{ratios[0]:.2f} (7-zip in one thread) and {ratios[1]:.2f} (Linpack)",
    )


KINDRED = ("single_thread_mips", "linpack_gflops")


def _from_product(device: dict[str, Any], base: Law, other: dict[str, Any]) -> Law:
    """The rate of a matrix product times the share of it that training reached
    elsewhere.
    """
    rate = device["matmul_gflops"]["value"] * 1e9 * SHARE_OF_PRODUCT
    slower = (
        other["single_thread_mips"]["value"] / device["single_thread_mips"]["value"]
    )
    return Law(
        base.overhead_s * slower,
        1 / rate,
        math.exp(math.hypot(math.log(LEAST_FACTOR), math.log(1.5))),
        base.flops,
        f"{SHARE_OF_PRODUCT:.0%} of the rate of a 32-bit matrix product, the share "
        "that training reached on a processor of ours; on a GPU it may be half",
    )


def step_over_forward() -> tuple[float, float]:
    """What a training step takes against three forward passes of as many samples, by
    our own measured profile: the geometric mean over models, and the spread of the
    logarithm.
    """
    profile = yaml.safe_load(MEASURED.read_text())
    costs = []
    for model, rows in profile["training"].items():
        forward = profile["inference"].get(model, {})
        for samples in set(rows) & set(forward) if model != "any" else ():
            costs.append(
                math.log(_seconds(rows[samples]) / (3 * _seconds(forward[samples])))
            )
    middle, spread = _mean_and_sd(costs)
    return math.exp(middle), max(spread, math.log(1.25))


def _networks(node: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {
        name: (_macs(row), row["s"])
        for name, row in node.items()
        if isinstance(row, dict)
    }


def _macs(row: dict[str, Any]) -> float:
    return float(str(row["macs"]).removesuffix(" M")) * 1e6


def _work(row: dict[str, Any]) -> tuple[float, float]:
    """FLOPs and seconds of what a row timed: a step if it says training, else a forward
    pass.
    """
    per_sample = (STEP if row["what"].startswith("training") else 2) * _macs(row)
    if "images_per_s" in row:
        return per_sample, 1 / row["images_per_s"]
    return per_sample * row.get("batch", 1), row["s"]


def _per_operation(device: dict[str, Any]) -> float:
    return float(device["lean"]["s"] / device["lean"]["operations"])


def _seconds(text: str) -> float:
    return float(text.removesuffix(" s"))


def _mean_and_sd(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _factor(*spreads: float) -> float:
    return max(LEAST_FACTOR, math.exp(NINETY * math.hypot(*spreads)))


def profile_text(name: str, numbers: dict[str, Any]) -> str:
    law, device = law_of(name, numbers["devices"]), numbers["devices"][name]
    more, _ = step_over_forward()
    sources = "\n".join(
        _source(where, what, numbers) for where, what in _used(name, numbers)
    )
    laws = "".join(
        _law_text(quantity, law, cost)
        for quantity, cost in (
            ("training", 1.0),
            ("inference", 1 / more),
            ("distillation", 1.0),
        )
    )
    return f"""\
# Made of what others published, by `python analysis/published_devices.py`. \
Not measured by
# simfed: see docs/calibration.md, and measure the device if it matters.
kind: published
name: {name}
description: {device["description"]}
provenance:
  trust: >-
{_folded(_trust(law, device["software"]))}
{f"  threads: {device['threads']}" if "threads" in device else "  unknown: [threads]"}
  not_published: [compression, decompression, auxiliary work]
  sources:
{sources}
{laws}"""


def _trust(law: Law, software: str) -> str:
    return (
        f"right within a factor of {law.factor:.1f} nine times in ten for {software}, "
        f"as far as "
        f"can be told (other software may be ten times faster); made of {law.made}"
    )


def _folded(text: str, indent: int = 4) -> str:
    """Text as a block of lines."""
    return textwrap.fill(
        " ".join(text.split()),
        100,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
    )


def _used(name: str, numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """(source, number) of all that a device's law is made of."""
    device = numbers["devices"][name]
    used = [
        (device[key]["source"], f"{key}: {device[key]['value']}")
        for key in (*KINDRED, "matmul_gflops")
        if key in device
        and (key == "matmul_gflops" or name != "raspberry-pi-4")
        and (key != KINDRED[0] or name != "jetson-nano")
    ]
    used += [(row["source"], _printed(row)) for row in device.get("steps", ())]
    if "lean" in device:
        used.append((device["lean"]["source"], _printed(device["lean"])))
    if "forward" in device:
        file, count = device["forward"]["file"], len(_networks(device["forward"]))
        used.append((device["forward"]["source"], f"{count} forward passes of {file}"))
    base = {"raspberry-pi-5": "raspberry-pi-4", "jetson-orin-nano": "jetson-nano"}.get(
        name
    )
    if base is not None:
        below = numbers["devices"][base]
        used += [
            (below[key]["source"], f"{base} {key}: {below[key]['value']}")
            for key in KINDRED
            if key in below and key in device
        ]
        used += _used(base, numbers)
    return used


def _printed(row: dict[str, Any]) -> str:
    if "images_per_s" in row:
        return f"{row['what']}, {row['images_per_s']} images/s"
    batch = f", batch {row['batch']}" if "batch" in row else ""
    sd = f" (sd {row['sd']:g} s)" if "sd" in row else ""
    return f"{row['what']}{batch}, {row['s']:g} s{sd}"


def _source(where: str, what: str, numbers: dict[str, Any]) -> str:
    source = numbers["sources"][where]
    commit = f", commit {source['commit'][:12]}" if "commit" in source else ""
    return (
        f"  - number: '{what}'\n"
        f"    source: '{source['where']}{commit}, {source['path']}'\n"
        f"    method: >-\n{_folded(source['method'], 6)}"
    )


def _law_text(quantity: str, law: Law, cost: float) -> str:
    sd = math.log(law.factor) / NINETY
    return f"""\
{quantity}:
  any:
    law: affine-flops
    parameters: {{a: {law.overhead_s * cost:.4g}, b: {law.per_flop * cost:.4g}}}
    valid:
      flops: [{law.flops[0]:.3g}, {law.flops[1]:.3g}]
    error: {{other_model: {math.sqrt(2 / math.pi) * sd:.3f}}}
    uncertainty: {sd:.3f}
"""


def devices_table(numbers: dict[str, Any]) -> str:
    """What the profiles say and what they are made of."""
    lines = [["profile", "training, GFLOP/s", "per step beside", "LeNet-5, batch 32"]]
    lines[0] += ["ResNet-18 (CIFAR), batch 32", "within a factor of", "made of"]
    for name in numbers["devices"]:
        law = law_of(name, numbers["devices"])
        times = [law.overhead_s + law.per_flop * flops for flops in (80e6, 106.5e9)]
        spoken = [_spoken(seconds) for seconds in (law.overhead_s, *times)]
        rate = _rate(1e-9 / law.per_flop)
        lines.append([f"`{name}`", rate, *spoken, f"{law.factor:.1f}", law.made])
    return markdown(lines)


def checks_table(numbers: dict[str, Any]) -> str:
    """Each profile against numbers that it was not made of."""
    more, _ = step_over_forward()
    lines = [["profile", "second source", "what", "published", "profile says", "ratio"]]
    lines[0] += ["within the factor"]
    for name, device in numbers["devices"].items():
        law = law_of(name, numbers["devices"])
        for row in device["second"]:
            what, published, says, ratio = _held(row, law, more)
            holds = 1 / law.factor <= ratio <= law.factor
            verdict = "yes" if holds else "**no**"
            if "faster" in row and ratio > law.factor:
                verdict = f"slower, as it may be: {row['faster']}"
            cells = [row["source"], what, published, says, f"{ratio:.2f}", verdict]
            lines.append([f"`{name}`", *cells])
    return markdown(lines)


def _held(row: dict[str, Any], law: Law, more: float) -> tuple[str, str, str, float]:
    """A number that a profile was not made of: what, as published, as the profile has
    it, and the profile's time over the published one.
    """
    if "product_gflops" in row:
        rate, ours = SHARE_OF_PRODUCT * row["product_gflops"], 1e-9 / law.per_flop
        what = f"{row['what']}, {SHARE_OF_PRODUCT:.0%} of it"
        return what, f"{rate:.3g} GFLOP/s", f"{ours:.3g} GFLOP/s", rate / ours
    flops, seconds = _work(row)
    cost = 1.0 if row["what"].startswith("training") else 1 / more
    # a batch of unknown size: the overhead shared by many
    at_once = "images_per_s" in row
    says = cost * (law.overhead_s * (not at_once) + law.per_flop * flops)
    return row["what"], _spoken(seconds), _spoken(says), says / seconds


def sources_list(numbers: dict[str, Any]) -> str:
    """The sources, with their methods."""
    lines = []
    for name, source in numbers["sources"].items():
        repository = source["where"].removeprefix("https://github.com/")
        lines.append(
            f"- **{name}**: [{repository}]({source['where']}), `{source['path']}` at "
            f"commit `{source['commit'][:12]}`: {' '.join(source['method'].split())}."
        )
    return "\n".join(lines)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spoken(seconds: float) -> str:
    if seconds == 0:
        return "–"
    unit, size = next(
        ((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6)
    )
    return f"{seconds / size:.3g} {unit}"


TABLES = {"devices": devices_table, "checks": checks_table, "sources": sources_list}


def page_text(text: str, numbers: dict[str, Any]) -> str:
    """The page with its tables made anew, each between two comments."""
    for name, make in TABLES.items():
        text = put_between(text, name, make(numbers))
    return text


def files() -> dict[Path, str]:
    """Every file that the numbers make, and its text."""
    numbers = yaml.safe_load(NUMBERS.read_text())
    made = {
        MEASURED.parent / f"{name}.yaml": profile_text(name, numbers)
        for name in numbers["devices"]
    }
    return {**made, PAGE: page_text(PAGE.read_text(), numbers)}


def main() -> int:
    """Write what differs; with --check only say it."""
    stale = [path for path, text in files().items() if _read(path) != text]
    for path in stale:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.write_text(files()[path])
    return int("--check" in sys.argv and bool(stale))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
