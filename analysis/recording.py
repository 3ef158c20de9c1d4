"""The README's recording: a run whose Gantt chart and accuracy grow, as one small animated SVG.

    simfed run scenarios/quickstart.yaml --out runs/quickstart
    python analysis/recording.py runs/quickstart --out docs/images/recording.svg

Everything in it is read from the run: the bars are the spans of its first rounds, the sentences
what these rounds waited for, the curve the mean test accuracy of all rounds. Both axes are
simulated time; the two panels run at different speeds and say so. Where the reader's system asks
for no motion, the last frame stands still.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import simfed
from simfed.ground.units import counted, format_duration
from simfed.report import frames
from simfed.report.style import PHASES

if TYPE_CHECKING:
    from simfed import RunResult

ROUNDS = 5
GROWS_S, HOLDS_S = 6.0, 3.0
LOOP_S = GROWS_S + HOLDS_S
WIDTH, HEIGHT = 960, 430
GANTT = (84, 76, 500, 250)
"""Left, top, width, height of the panel; the curve's is that of the right."""
CURVE = (668, 76, 262, 250)
STEPS = 24
"""How often the numbers above the curve change."""


def recording(run: RunResult, command: str, rounds: int = ROUNDS) -> str:
    """The animated SVG of a run that evaluated its models."""
    body = [*_gantt(run, rounds), *_curve(run), *_legend(run, rounds)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'aria-labelledby="title">',
            f'<title id="title">{escape(command)}: the first {rounds} rounds as a Gantt chart, '
            "and the test accuracy of the whole run, against simulated time</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10"/>',
            f'<text class="command" x="24" y="36">$ {escape(command)}</text>',
            *body,
            "</svg>\n",
        ]
    )


_STYLE = f"""
text {{ font: 13px system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; fill: #24292f; }}
.card, .curtain {{ fill: #fff; }}
.card {{ stroke: #d0d7de; }}
.command {{ font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
.dim {{ fill: #57606a; }}
.end {{ text-anchor: end; }}
.axis {{ stroke: #8c959f; fill: none; }}
.round {{ stroke: #24292f; stroke-dasharray: 2 3; }}
.mean {{ stroke: #0072b2; stroke-width: 2.2; fill: none; }}
.said {{ font-size: 15px; font-weight: 600; }}
.big {{ font-size: 18px; font-weight: 600; text-anchor: end; }}
.curtain {{ animation: open {LOOP_S:g}s linear infinite; transform: translateX(100%);
            transform-box: fill-box; }}
@keyframes open {{ 0% {{ transform: translateX(0); }}
  {100 * GROWS_S / LOOP_S:.1f}%, 100% {{ transform: translateX(100%); }} }}
.shown {{ opacity: 0; animation: {LOOP_S:g}s step-end infinite; }}
.shown.last {{ opacity: 1; }}
@media (prefers-reduced-motion: reduce) {{ .curtain, .shown {{ animation: none; }} }}
"""


def _gantt(run: RunResult, rounds: int) -> list[str]:
    """The bars of the first rounds, which a curtain uncovers, and what each round waited for."""
    left, top, width, height = GANTT
    table = run.rounds.iloc[:rounds]
    end_s = float(table["finished_at_s"].iloc[-1])
    spans = run.spans[(run.spans["round"] <= rounds) & run.spans["client"].notna()]
    clients = sorted(int(client) for client in spans["client"].unique())
    row = height / len(clients)

    def x(at_s: float) -> float:
        return at_s / end_s * width

    bars: dict[str, list[str]] = {}
    for span in spans.itertuples():
        begin, length = x(span.started_at_s), x(span.finished_at_s - span.started_at_s)
        y = clients.index(int(span.client)) * row + 0.15 * row
        bars.setdefault(str(span.kind), []).append(
            f"M{begin:.1f} {y:.1f}h{length:.1f}v{0.7 * row:.1f}h{-length:.1f}z"
        )
    lines = [
        f'<text class="dim end" x="{left - 8}" y="{top + (i + 0.5) * row + 4:.1f}">client {c}'
        "</text>"
        for i, c in enumerate(clients)
    ]
    lines += [f'<svg x="{left}" y="{top}" width="{width}" height="{height}">']
    lines += [f'<path d="{"".join(d)}" fill="{PHASES[kind].colour}"/>' for kind, d in bars.items()]
    lines += [
        f'<path class="round" d="M{x(at_s):.1f} 0v{height}"/>' for at_s in table["finished_at_s"]
    ]
    lines += [f'<rect class="curtain" width="{width}" height="{height}"/>', "</svg>"]
    lines += _time_axis(GANTT, end_s, f"who does what in the first {counted(rounds, 'round')}")
    for number, one in enumerate(table.itertuples()):
        until = x(table["finished_at_s"].iloc[number + 1]) / width if number + 1 < rounds else None
        lines.append(
            _shown(
                f"round-{number}",
                x(one.finished_at_s) / width,
                until,
                f'<text class="said" x="{left}" y="{top + height + 52}">'
                f"{escape(_waited(one))}</text>",
            )
        )
    return lines


def _waited(one: Any) -> str:
    """What a round waited for, in words."""
    length = format_duration(one.finished_at_s - one.started_at_s)
    over = f" over {one.critical_link}" if isinstance(one.critical_link, str) else ""
    return (
        f"Round {one.round} took {length}. It waited for client {one.critical_client}, "
        f"mostly for its {one.critical_phase}{over}."
    )


def _curve(run: RunResult) -> list[str]:
    """Mean test accuracy of the whole run, uncovered in the same seconds."""
    left, top, width, height = CURVE
    tidy = frames.curves(run)
    means = tidy[tidy["prototype"] == frames.choose_headline(tidy)].dropna(subset=["accuracy"])
    end_s = float(run.rounds["finished_at_s"].iloc[-1])
    points = " ".join(
        f"{at_s / end_s * width:.1f},{height * (1 - accuracy):.1f}"
        for at_s, accuracy in zip(means["at_s"], means["accuracy"], strict=True)
    )
    lines = [
        f'<svg x="{left}" y="{top}" width="{width}" height="{height}">',
        f'<polyline class="mean" points="{points}"/>',
        f'<rect class="curtain" width="{width}" height="{height}"/>',
        "</svg>",
    ]
    for share in (0, 0.5, 1):
        y = top + height * (1 - share)
        lines.append(f'<text class="dim end" x="{left - 6}" y="{y + 4:.0f}">{share:.0%}</text>')
    lines.append(f'<path class="axis" d="M{left} {top}v{height}"/>')
    lines += _time_axis(CURVE, end_s, f"test accuracy, all {counted(len(run.rounds), 'round')}")
    for step in range(STEPS):
        begin, until = step / STEPS, (step + 1) / STEPS if step + 1 < STEPS else None
        seen = means[means["at_s"] <= (step + 1) / STEPS * end_s]
        if len(seen):
            last = seen.iloc[-1]
            said = f"round {int(last['round'])}: {last['accuracy']:.0%}"
            text = f'<text class="big" x="{left + width - 8}" y="{top + height - 16}">{said}</text>'
            lines.append(_shown(f"step-{step}", begin, until, text))
    return lines


def _time_axis(panel: tuple[int, int, int, int], end_s: float, said: str) -> list[str]:
    left, top, width, height = panel
    y = top + height
    return [
        f'<path class="axis" d="M{left} {y}h{width}"/>',
        f'<text class="dim" x="{left}" y="{y + 18}">0 s</text>',
        f'<text class="dim end" x="{left + width}" y="{y + 18}">{format_duration(end_s)}</text>',
        f'<text class="dim" x="{left + width / 2:.0f}" y="{y + 18}" text-anchor="middle">'
        f"simulated time</text>",
        f'<text class="dim" x="{left}" y="{top - 10}">{escape(said)}</text>',
    ]


def _shown(name: str, begin: float, until: float | None, inner: str) -> str:
    """Something that is there from one share of the growing time to another, or to the end."""
    at = 100 * begin * GROWS_S / LOOP_S
    gone = 100 * until * GROWS_S / LOOP_S if until is not None else None
    frames = f"0% {{ opacity: 0; }} {at:.2f}% {{ opacity: 1; }}"
    if begin == 0:
        frames = "0% { opacity: 1; }"
    frames += f" {gone:.2f}% {{ opacity: 0; }}" if gone is not None else ""
    last = " last" if until is None else ""
    frames += f" 100% {{ opacity: {int(until is None)}; }}"
    return (
        f"<style>@keyframes {name} {{ {frames} }}</style>"
        f'<g class="shown{last}" style="animation-name: {name}">{inner}</g>'
    )


def _legend(run: RunResult, rounds: int) -> list[str]:
    spans = run.spans[(run.spans["round"] <= rounds) & run.spans["client"].notna()]
    lines, x = [], float(GANTT[0])
    for kind in [name for name in PHASES if name in set(spans["kind"])]:
        label = PHASES[kind].label
        y = HEIGHT - 22
        lines.append(
            f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12" fill="{PHASES[kind].colour}"/>'
        )
        lines.append(f'<text x="{x + 18:.0f}" y="{y}">{label}</text>')
        x += 34 + 7.2 * len(label)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the recording of a run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images/recording.svg"))
    parser.add_argument("--command", default="simfed run scenarios/quickstart.yaml")
    asked = parser.parse_args(arguments)
    text = recording(simfed.load_run(asked.run), asked.command)
    asked.out.write_text(text, encoding="utf-8")
    print(f"{asked.out}: {len(text):,} characters")


if __name__ == "__main__":
    main()
