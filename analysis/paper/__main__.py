"""The evidence: the source's evaluation, run with simfed and judged claim by claim.

    python analysis/paper run [--jobs 2] [--device cuda] [--phase k-1000] [--most 10]
    python analysis/paper collect STUDY_FOLDER
    python analysis/paper oracle
    python analysis/paper collapse
    python analysis/paper report

`run` goes on with the campaign where it stands: a run is done once its compact result lies in
analysis/paper/runs. It can be stopped at any time. `collect` keeps the finished runs of a folder that
`run`, or `simfed study run scenarios/paper/…`, has made. `oracle` plays every strategy of every
client beside some of ASCEND's runs, into analysis/paper/oracle-runs. `collapse` plays the small world
in which networks fall to chance as CIFAR-10's do, into analysis/paper/collapse_rows.csv. `report` draws every figure and
writes RESULTS.md from the compact results alone, in seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simfed.ground.errors import SimfedError

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=HERE / "runs", help="compact results")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="go on with the campaign")
    run.add_argument("--out", type=Path, default=Path("studies/paper"), help="run directories")
    run.add_argument("--phase", action="append", help="only this one; may be repeated")
    run.add_argument("--device", default="cpu")
    run.add_argument(
        "--jobs", type=int, help="runs at once; if omitted one per core, or one on a GPU"
    )
    run.add_argument("--most", type=int, help="stop after so many runs")
    collect = commands.add_parser("collect", help="keep what a study's folder holds")
    collect.add_argument("study", type=Path)
    oracle = commands.add_parser("oracle", help="play what ASCEND did not choose")
    oracle.add_argument("--out", type=Path, default=Path("studies/oracle"), help="run directories")
    commands.add_parser("collapse", help="play the small world that falls to chance")
    report = commands.add_parser("report", help="figures, claims table and RESULTS.md")
    report.add_argument("--into", type=Path, default=HERE.parent, help="where RESULTS.md goes")
    arguments = parser.parse_args()
    if arguments.command == "report":
        from report import write_report

        print(write_report(arguments.results, arguments.into))
        return
    if arguments.command == "oracle":
        from oracle import FOLDER, play

        play(arguments.out, arguments.results.with_name(FOLDER))
        return
    if arguments.command == "collapse":
        import collapse

        collapse.play()
        return
    import campaign as campaign

    if arguments.command == "collect":
        written = campaign.collect(arguments.study, arguments.results)
        print(f"{len(written)} new compact results in {arguments.results}")
        return
    names = [phase.name for phase in campaign.PHASES]
    unknown = set(arguments.phase or ()) - set(names)
    if unknown:
        parser.error(f"--phase: one of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    phases = [p for p in campaign.PHASES if not arguments.phase or p.name in arguments.phase]
    campaign.work_off(
        arguments.out,
        arguments.results,
        phases=phases,
        device=arguments.device,
        jobs=arguments.jobs,
        most=arguments.most,
    )


if __name__ == "__main__":
    try:
        main()
    except SimfedError as error:
        sys.exit(str(error))
