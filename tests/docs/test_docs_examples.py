"""The Python examples of the documentation run as they stand."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2]
PAGES = [DOCS / "README.md", DOCS / "CONTRIBUTING.md", *sorted(DOCS.glob("docs/*.md"))]
LINKED = [*PAGES, DOCS / "CHANGELOG.md", *sorted(DOCS.glob("analysis/*.md"))]
LINKED += [DOCS / folder / "README.md" for folder in ("scenarios", "calibration")]
"""Pages whose links are followed: these, and those with examples."""


def examples(page: Path) -> str:
    """All Python blocks of a page, in order.

    `# not run` in the first line leaves one out.
    """
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    return "\n".join(block for block in blocks if not block.startswith("# not run"))


QUOTES = [
    pytest.param(path, quoted, id=f"{page.stem}-{path}")
    for page in PAGES
    for path, quoted in re.findall(
        r"^```python\n# not run: (\S+)\n(.*?)^```", page.read_text(), re.M | re.S
    )
]


def flatten(function):
    """A function but for comments and how its docstring is indented."""
    function.body[0].value.value = ast.get_docstring(function)
    return ast.dump(function)


@pytest.mark.parametrize(("path", "quoted"), QUOTES)
def test_functions_that_pages_quote_are_as_they_stand_in_their_files(path, quoted):
    (function,) = ast.parse(quoted).body
    there = ast.walk(ast.parse((DOCS / path).read_text()))
    same = [one for one in there if getattr(one, "name", "") == function.name]
    assert flatten(function) in map(flatten, same)


def test_the_clocks_page_follows_the_story():
    told = [re.search(r"def (\w+)", quote.values[1])[1] for quote in QUOTES]
    assert told == ["participate", "play", "_spend", "merge", "_play"]


LONG = {"studies", "own-methods", "CONTRIBUTING"}
"""Pages whose examples take a minute."""
RUN = [
    pytest.param(page, marks=[pytest.mark.long] * (page.stem in LONG), id=page.stem)
    for page in PAGES
    if examples(page)
]


FORKS = """
import os, runpy, sys, traceback
import pandas, torch, simfed.experiment.running, simfed.learn.federation
for line in sys.stdin:
    script = line.strip()
    if os.fork() == 0:
        for number, file in enumerate((os.devnull, script + ".out", script + ".err")):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
        sys.argv, sys.path[0] = [script], os.path.dirname(script)
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)  # to take the libraries down again would take a second
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Runs each script that it reads of in a process that has imported the heavy
libraries."""


@pytest.fixture(scope="module")
def forks():
    with subprocess.Popen(
        [sys.executable, "-c", FORKS],
        cwd=DOCS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("page", RUN)
def test_examples_run(page, tmp_path, forks):
    """In one process per page, from the repository, with a folder `runs` that is thrown
    away, and in three rounds.
    """
    script = tmp_path / "example.py"
    code = examples(page).replace('"runs/', f'"{tmp_path}/runs/')
    if page.stem != "own-methods":  # which says what its method learns
        code = re.sub(r'"rounds": \d+', '"rounds": 3', code)
    script.write_text(code)
    forks.stdin.write(f"{script}\n")
    forks.stdin.flush()
    assert forks.stdout.readline() == "0\n", script.with_suffix(".py.err").read_text()


@pytest.mark.parametrize("page", LINKED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_links_inside_the_repository_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


@pytest.mark.long
def test_the_notebook_runs_and_shows_what_it_promises(tmp_path):
    """Cell after cell in one process, each last line shown as a notebook would."""
    cells = json.loads((DOCS / "docs" / "tour.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)  # it is kept without results
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / "tour.py"
    script.write_text(_SHOW_CELLS.format(code=code))
    done = subprocess.run(
        [sys.executable, script], cwd=DOCS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split(_NEXT)
    assert "<svg" in shown[1]
    assert "decides nothing" in shown[4]
    assert "ASCEND" in shown[5]


_NEXT = "---- next cell"
_SHOW_CELLS = """
import ast
names = {{}}
for cell in {code!r}:
    body = ast.parse(cell).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        html = getattr(value, "_repr_html_", None)
        print(html() if html else value)
    print("---- next cell")
"""
