"""The cache of learning trajectories on disk.

    FOLDER/<learning key>/about.json              what was learned, for people
    FOLDER/<learning key>/steps-<unique>.jsonl    a line per known step of the tree
    FOLDER/<learning key>/states/<node>.safetensors

A *node* is the hash of all decisions that led to it, with what was asked there (see
`cached`). Every process appends to a file of its own and reads everybody's, so that
several may work on one trajectory at once.

Each line ends in a digest of the learning key, the node and the fact, and each state
carries one of its own; both are checked as they are read. What was damaged, edited or
moved here from another trajectory is not used, `damaged` says so, and the step is
learned again. The cache may vanish or fill up at any time: then things are computed
again, and no run fails for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.inputs import MissingFile, check_file, open_file, read_json
from simfed.ground.plain import Plain
from simfed.ground.units import parse_size
from simfed.record.digest import digest_value

Arrays: TypeAlias = Mapping[str, np.ndarray]

_MOST_STATES = 16
"""States kept of one trajectory by one process; beyond, every other one goes."""


def find_default_folder() -> Path:
    """Return `$SIMFED_CACHE`, else `trajectories` in the user's cache folder."""
    named = os.environ.get("SIMFED_CACHE")
    if named:
        return Path(named).expanduser()
    from simfed.learn.data.store import find_cache_folder

    return find_cache_folder() / "trajectories"


@dataclass(frozen=True, slots=True)
class Kept:
    """One trajectory in the cache, for `simfed cache list`."""

    key: str
    about: Mapping[str, Plain]
    steps: int
    states: int
    size_bytes: int
    used_at_wall: float
    """Seconds since 1970."""


class TrajectoryStore:
    """The trajectories kept below one folder.

    Args:
        folder: where they are kept; `find_default_folder()` if omitted. Made on first
            use.
        limit_bytes: `trim` deletes what was not used for longest until all fits in;
            `$SIMFED_CACHE_LIMIT` (such as `20 GB`), else 10 GB, if omitted.

    Raises:
        InputError: The variable is no size.
    """

    def __init__(
        self, folder: str | Path | None = None, limit_bytes: float | None = None
    ) -> None:
        self.folder = Path(folder) if folder is not None else find_default_folder()
        if limit_bytes is None:
            text = os.environ.get("SIMFED_CACHE_LIMIT", "10 GB")
            limit_bytes = parse_size(text, where="SIMFED_CACHE_LIMIT")
        self.limit_bytes = limit_bytes

    def open(self, key: str, about: Mapping[str, Plain]) -> Trajectory:
        """Return the trajectory of a learning key, known or new.

        Args:
            key: From `learning_key`.
            about: What is learned, for people; kept where the trajectory is new.
        """
        # a state that would crowd out everything else is not worth its place
        return Trajectory(
            self.folder / key, about, largest_state_bytes=self.limit_bytes / 10
        )

    def kept(self) -> list[Kept]:
        """Return everything in the cache, last used first."""
        return sorted(self._kept(), key=lambda entry: -entry.used_at_wall)

    def clear(self, key: str | None = None) -> int:
        """Delete all trajectories, or those whose key begins with `key`.

        Returns:
            How many they were.

        Raises:
            InputError: No key begins so, or it is empty, as a shell's unset variable
                is.
        """
        chosen = [k for k in self._kept() if key is None or k.key.startswith(key)]
        # a shell's unset variable is not "all"
        if key == "" or (key is not None and not chosen):
            raise InputError(
                "the beginning of a kept trajectory's key", where="cache", got=key
            )
        for trajectory in chosen:
            shutil.rmtree(self.folder / trajectory.key, ignore_errors=True)
        return len(chosen)

    def trim(self) -> None:
        """Delete until the cache is within its limit.

        States go before steps, long unused ones first.
        """
        trajectories = self.kept()
        excess = sum(each.size_bytes for each in trajectories) - self.limit_bytes
        for part in ("states", "."):
            for oldest in reversed(trajectories):
                if excess <= 0:
                    return
                place = self.folder / oldest.key / part
                freed = _measure_size_bytes(place)
                shutil.rmtree(place, ignore_errors=True)
                excess -= freed

    def _kept(self) -> Iterator[Kept]:
        """Yield each trajectory below the folder, in no order."""
        if not self.folder.is_dir():
            return
        for place in self.folder.iterdir():
            try:
                about: Any = read_json(place / "about.json")
                used = (place / "about.json").stat().st_mtime
                steps = sum(_count_lines(part) for part in place.glob("steps-*.jsonl"))
            except (OSError, InputError):
                continue  # not ours, or being deleted by somebody else
            states = len(list(place.glob("states/*.safetensors")))
            yield Kept(
                place.name, about, steps, states, _measure_size_bytes(place), used
            )


class Trajectory:
    """The facts of one learning setup: outcomes and sizes by node, kept states.

    Writing never raises: when the disk refuses, `problem` says why and the rest is not
    kept.

    Attributes:
        folder: Where it is kept; made at the first fact.
        problem: Why nothing is kept any longer; None: all is well.
    """

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Plain],
        *,
        largest_state_bytes: float = float("inf"),
    ) -> None:
        """Read what is known.

        Args:
            folder: Named by the learning key.
            about: What is learned, for people.
            largest_state_bytes: Larger states are not kept.
        """
        self.folder = folder
        self.problem: str | None = None
        self._about = dict(about)
        self._largest_state_bytes = largest_state_bytes
        self._read_bytes: dict[str, int] = {}
        self._read_lines: dict[str, int] = {}
        self._bad_lines: dict[str, list[int]] = {}
        self._bad_states: list[str] = []
        self._known: dict[str, Plain] = {}
        self._mine: TextIO | None = None
        self._my_states: list[str] = []
        self._refresh()
        if self.folder.is_dir():
            self._try(lambda: os.utime(self.folder / "about.json"))
            # a cache that can only be read is still good for reading
            self.problem = None

    @property
    def damaged(self) -> list[str]:
        """Sentences on what was found here and not used, one for each file."""
        lines = [
            f"{self.folder / name}: {len(bad)} of {self._read_lines[name]} lines are "
            f"damaged and were not used, the first one is line {bad[0]}"
            for name, bad in self._bad_lines.items()
        ]
        states = map(self._state_path, self._bad_states)
        return [*lines, *(f"{state}: damaged and not used" for state in states)]

    def known(self, node: str) -> Plain:
        """Return what was recorded at `node` (by anybody, up to now), or None."""
        if node not in self._known:
            self._refresh()
        return self._known.get(node)

    def add(self, node: str, fact: Plain) -> None:
        """Record a JSON-able fact at `node`.

        What is known there already stays.
        """
        if node in self._known or self.problem is not None:
            return
        self._known[node] = fact

        def write() -> None:
            if self._mine is None:
                self._begin()
                name = f"steps-{uuid.uuid4().hex[:12]}.jsonl"
                self._mine = (self.folder / name).open("x", encoding="utf-8")
            # one write per line: a killed process leaves whole lines and at most a torn
            # last one
            step = json.dumps([node, fact], separators=(",", ":"))
            self._mine.write(f'{step[:-1]},"{self._digest(step)}"]\n')
            self._mine.flush()

        self._try(write)

    def keep_state(self, node: str, facts: Mapping[str, Plain], arrays: Arrays) -> bool:
        """Keep the learning state at `node`, from which work can go on.

        Args:
            node: Where a merge led.
            facts: JSON-able.
            arrays: By name.

        Returns:
            Whether so many were kept that every other one went: time to come half as
            often.
        """
        from safetensors.numpy import save_file

        path = self._state_path(node)
        size_bytes = sum(array.nbytes for array in arrays.values())
        if (
            self.problem is not None
            or size_bytes > self._largest_state_bytes
            or path.exists()
        ):
            return False
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}

        def write() -> None:
            self._begin()
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(f".partial-{uuid.uuid4().hex[:12]}")
            try:
                text = json.dumps(facts)
                digest = self._state_digest(node, text, whole)
                save_file(whole, temporary, metadata={"facts": text, "digest": digest})
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            # in use: another's trim takes older ones first
            os.utime(self.folder / "about.json")
            self._my_states.append(node)

        self._try(write)
        if len(self._my_states) <= _MOST_STATES:
            return False
        for old in self._my_states[1::2]:
            self._try(partial(self._state_path(old).unlink, missing_ok=True))
        self._my_states = self._my_states[::2]
        return True

    def has_state(self, node: str) -> bool:
        """Return whether a state is kept at `node`."""
        return self._state_path(node).exists()

    def state(self, node: str) -> tuple[dict[str, Plain], dict[str, np.ndarray]] | None:
        """Return the state kept at `node` as (facts, arrays), or None.

        A damaged one counts as none, is told of in `damaged`, and deleted.
        """
        from safetensors import SafetensorError, safe_open

        path = self._state_path(node)
        try:
            check_file(path)
            with safe_open(path, framework="numpy") as file:
                about = file.metadata()
                arrays = {
                    name: file.get_tensor(name)
                    for name in file.keys()  # noqa: SIM118
                }
            if about["digest"] == self._state_digest(node, about["facts"], arrays):
                return json.loads(about["facts"]), arrays
        except MissingFile:
            return None
        except (OSError, InputError, SafetensorError, ValueError, KeyError, TypeError):
            pass
        self._bad_states.append(node)
        # a whole one may take its place
        self._try(lambda: path.unlink(missing_ok=True))
        return None

    def close(self) -> None:
        """No more will be added; safe to call twice."""
        if self._mine is not None:
            self._try(self._mine.close)
            self._mine = None

    def _state_path(self, node: str) -> Path:
        return self.folder / "states" / f"{node}.safetensors"

    def _digest(self, *parts: str) -> str:
        """Return a digest that no other trajectory gives these texts."""
        return digest_value([self.folder.name, *parts])

    def _state_digest(self, node: str, facts: str, arrays: Arrays) -> str:
        """Return the digest of a state: its node, its facts, and all arrays."""
        running = hashlib.blake2b(self._digest(node, facts).encode(), digest_size=16)
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            running.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            running.update(array.reshape(-1).view(np.uint8).data)
        return running.hexdigest()

    def _begin(self) -> None:
        """Make the folder with `about.json`, unless it is there."""
        about = self.folder / "about.json"
        if about.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".partial-{uuid.uuid4().hex[:12]}"
        temporary.write_text(json.dumps(self._about, indent=1), encoding="utf-8")
        os.replace(temporary, about)

    def _refresh(self) -> None:
        """Read what has been appended to any part since last time, whole lines only."""
        for part in sorted(self.folder.glob("steps-*.jsonl")):
            begin = self._read_bytes.get(part.name, 0)
            try:
                if part.stat().st_size <= begin:
                    continue
                with open_file(part) as file:
                    file.seek(begin)
                    new = file.read()
            except (OSError, InputError):
                continue
            whole = new.rfind(b"\n") + 1
            self._read_bytes[part.name] = begin + whole
            for line in new[:whole].split(b"\n")[:-1]:
                number = self._read_lines[part.name] = (
                    self._read_lines.get(part.name, 0) + 1
                )
                # [node, fact, digest of [node, fact]]
                step, _, digest = line.decode(errors="replace").rpartition(",")
                if digest == f'"{self._digest(step + "]")}"]':
                    node, fact, _ = json.loads(line)
                    self._known.setdefault(node, fact)
                else:
                    self._bad_lines.setdefault(part.name, []).append(number)

    def _try(self, action: Callable[[], object]) -> None:
        """Do what may meet a full or missing disk, which becomes the `problem`."""
        try:
            action()
        except OSError as error:
            self.problem = f"{self.folder}: {error.strerror or error}"


def _measure_size_bytes(place: Path) -> int:
    """Return the bytes of all files below a folder, of those that are still there."""
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except OSError:
                continue
    return total


def _count_lines(path: Path) -> int:
    """Return the number of lines in a file."""
    with open_file(path) as file:
        return sum(
            block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")
        )
