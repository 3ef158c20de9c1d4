"""Published numbers of other people, played with simfed.

    python analysis/others/others.py SOURCE [--data FOLDER]
    python analysis/others/others.py page

SOURCE is a folder beside this file; what its README asks for is given by `--data`. Its
rows.csv is written anew, and `page` writes the tables of docs/validation.md from all of
them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger import HERE, PAGE, median_error, write_rows
from pages import write_page
from validation_page import SOURCES

from simfed.ground.errors import SimfedError


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", choices=[*SOURCES, "page"])
    parser.add_argument(
        "--data", type=Path, help="a checkout, where the source needs one"
    )
    options = parser.parse_args()
    if options.source != "page":
        sys.path.insert(0, str(HERE / options.source))
        script = importlib.import_module(SOURCES[options.source].script)
        rows = script.compare_rows(options.data)
        print(f"{write_rows(options.source, rows)}: {len(rows)} rows")
        print(f"median error {100 * median_error(rows):.2f} %")
    write_page("validation_page")
    print(PAGE)


if __name__ == "__main__":
    try:
        main()
    except SimfedError as error:
        sys.exit(str(error))
