"""Pages of the site, gathered from the repository: no text stands twice.

Pages keep the paths of their files, so that links between files of the repository are
links between pages. What a page links to and is no page itself becomes one that shows
it (a scenario, a script, a folder) or is copied (an image, a table).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
GATHERED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "scenarios/README.md",
    "calibration/README.md",
    "analysis/ADAPTERS.md",
    "analysis/ANSWERS.md",
    "analysis/BALANCE.md",
    "analysis/METHODS.md",
    "analysis/NOT-WAITING.md",
    "analysis/PRIVACY.md",
    "analysis/REAL.md",
    "analysis/RECORDED.md",
    "analysis/RESULTS.md",
    "analysis/TUNED.md",
)
STUDIES = (
    "analysis/ANSWERS.md",
    "analysis/NOT-WAITING.md",
    "analysis/BALANCE.md",
    "scenarios/README.md",
)
"""Pages whose figures the gallery shows."""
NOTEBOOK = "docs/tour.ipynb"
SHOWN = {
    ".yaml": "yaml",
    ".py": "python",
    ".cff": "yaml",
    ".csv": "text",
    ".json": "json",
}
"""Kinds of files that are shown on a page of their own, and their language."""
LARGEST_SHOWN = 60_000
BESIDE = InclusionLevel.NOT_IN_NAV
"""Of pages that are reached by links only."""

_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)]*)?\))")
_FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages of docs/ that no section names yet stand at the end."""
    named = set(_named(config.nav or []))
    rest = [path for path in _docs() if path not in named]
    if rest:
        config.nav = [*(config.nav or []), {"Further pages": rest}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All pages, and all that they link to."""
    texts = {path: _text(path) for path in (*GATHERED, *_docs())}
    texts[NOTEBOOK] = _notebook(json.loads(_text(NOTEBOOK)))
    found = [_page(config, _page_of(path), text) for path, text in texts.items()]
    linked = {target for path, text in texts.items() for target in _linked(path, text)}
    while beside := {path for path in linked - set(texts) if path.endswith(".md")}:
        for path in sorted(beside):
            texts[path] = _text(path)
            found.append(_page(config, path, texts[path], BESIDE))
            linked.update(_linked(path, texts[path]))
    for target in sorted(linked - set(texts)):
        if (ROOT / target).is_dir():
            found.append(_page(config, _page_of(target), _folder(target), BESIDE))
            found += [_file(config, f"{target}/{name}") for name in _listed(target)]
        else:
            found.append(_file(config, target))
    found.append(
        _page(config, "gallery.md", gallery({path: texts[path] for path in STUDIES}))
    )
    for file in {file.src_uri: file for file in found}.values():
        files.append(file)
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Links to files that are shown lead to the pages that show them."""
    source = PurePosixPath(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        target = _within(source.parent, match[2])
        if target is None or files.get_file_from_path(_page_of(target)) is None:
            return match[0]
        return match[1] + posixpath.relpath(_page_of(target), source.parent) + match[3]

    return _outside_code(markdown, lambda text: _LINK.sub(led, text))


def gallery(texts: Mapping[str, str]) -> str:
    """The studies that have figures, from the pages about them: figure, caption, a
    link.
    """
    out = [
        "# Gallery of studies", "",
        "Each figure was drawn from a study in `scenarios/studies`, by a script "
        "that stands on its page.", "",
    ]  # fmt: skip
    for path, text in texts.items():
        for section in re.split(r"^##? ", text, flags=re.MULTILINE)[1:]:
            title = section.partition("\n")[0].replace("`", "")
            images = re.findall(r"!\[([^]]*)\]\(([^)]+)\)", section)
            if not images:
                continue
            where = f"{path}#{_slug(title)}"
            out += [f"## {title.partition(':')[0]}", ""]
            for alt, image in images:
                shown = _within(PurePosixPath(path).parent, image)
                out += [f"[![{alt}]({shown})]({where})", "", f"*{alt}.*", ""]
            out += [f"[What came out, and how it was done]({where})", ""]
    return "\n".join(out)


def _named(nav: Any) -> Iterator[str]:
    """The pages that a navigation names, at any depth."""
    if isinstance(nav, str):
        yield nav
    for below in (
        nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    ):
        yield from _named(below)


def _docs() -> list[str]:
    return [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _page_of(path: str) -> str:
    """The page of a file: pages and images are themselves."""
    suffix = PurePosixPath(path).suffix
    if suffix == ".ipynb":
        return path.removesuffix(".ipynb") + ".md"
    if (ROOT / path).is_dir():
        return f"{path}/index.md"
    return f"{path}.md" if suffix in SHOWN and _is_short(path) else path


def _is_short(path: str) -> bool:
    file = ROOT / path
    return file.is_file() and file.stat().st_size <= LARGEST_SHOWN


def _page(
    config: MkDocsConfig,
    uri: str,
    text: str,
    level: InclusionLevel = InclusionLevel.INCLUDED,
) -> File:
    return File.generated(config, uri, content=text, inclusion=level)


def _file(config: MkDocsConfig, path: str) -> File:
    uri = _page_of(path)
    if uri == path:
        return File.generated(config, path, abs_src_path=str(ROOT / path))
    language = SHOWN[PurePosixPath(path).suffix]
    fence = "`" * 4
    return _page(
        config,
        uri,
        (f"# `{path}`\n\n{fence}{language}\n{_text(path)}\n{fence}\n"),
        BESIDE,
    )


def _linked(path: str, text: str) -> Iterator[str]:
    """Files and folders of the repository that a text links to."""
    for part in _FENCED.split(text)[::3]:
        for match in _LINK.finditer(part):
            target = _within(PurePosixPath(path).parent, match[2])
            if target is not None:
                yield target


def _within(folder: PurePosixPath, link: str) -> str | None:
    """The path a relative link leads to, or None where it leads nowhere in here."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = (ROOT / folder / link).resolve()
    if not path.exists() or not path.is_relative_to(ROOT) or path == ROOT:
        return None
    return path.relative_to(ROOT).as_posix()


def _listed(folder: str) -> list[str]:
    """The files of a folder, where these are few."""
    names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
    return names if len(names) <= 40 else []


def _folder(folder: str) -> str:
    names = _listed(folder)
    lines = [
        (f"- [{name}]({_page_of(f'{folder}/{name}').rpartition('/')[2]})")
        for name in names
    ]
    count = sum(1 for path in (ROOT / folder).iterdir())
    return "\n".join(
        [f"# `{folder}`", "", *(lines or [(f"{count} files, in the repository.")]), ""]
    )


def _notebook(notebook: dict[str, Any]) -> str:
    """The cells of a notebook, one after the other; it is kept without results."""
    out = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        out.append(
            text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        )
    return "\n\n".join(out) + "\n"


def _slug(title: str) -> str:
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")


def _outside_code(markdown: str, change: Any) -> str:
    """The text with everything changed but code blocks."""
    done, at = [], 0
    for block in _FENCED.finditer(markdown):
        done += [change(markdown[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*done, change(markdown[at:])])
