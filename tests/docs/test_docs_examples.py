"""The Python examples of the documentation run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2]
PAGES = [DOCS / "README.md", *sorted((DOCS / "docs").glob("*.md"))]


def examples(page: Path) -> str:
    """All Python blocks of a page, in order; `# not run` in the first line leaves one out."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    return "\n".join(block for block in blocks if not block.startswith("# not run"))


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda p: p.stem)
def test_examples_run(page, tmp_path):
    """In one process per page, from the repository, with a folder `runs` that is thrown away."""
    script = tmp_path / "example.py"
    code = examples(page).replace('"runs/', f'"{tmp_path}/runs/')
    script.write_text(code)
    done = subprocess.run([sys.executable, script], cwd=DOCS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_inside_the_repository_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing
