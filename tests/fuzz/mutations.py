"""Files that are nearly right: structured mutations of one of each kind that simfed
reads.

Every input is `mutated(kind, number)` of a corpus made by `corpus`: the same number is
the same input, on any machine. Text is cut, doubled and spoiled; what is structured
(YAML, JSON, rows of a table, tables of Parquet) is mutated as what it is, and where a
digest guards it, it is computed again in half of the cases, so that mutations get past
it.
"""

import copy
import json
import math
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).parents[2]

STRANGE = [
    None, True, False, 0, -1, 1, 2, 10**9 + 1, 10**30, -(10**30), 0.5, -0.5, 1e308,
    1e-308, math.nan, math.inf, -math.inf, "", " ", "x", "0", "-1", "1e400", "NaN",
    "50 Mbps", "0 s", "-3 s", "1 EB",
    "10%", "top-k@1%", "top-k+qsgd(4)", "qsgd(levels=", "chain", "é\u0300",
    "\U0001f600", "\u202e", "a" * 5000, "../..", "/dev/null", "C:\\x", "runs/x", "{}",
    "[]", [], {}, [[]], [None], [1, 2, 3], {"x": 1}, {"kind": "x"}, {"kind": None},
    {"kind": ["a"]}, {"file": "x"}, {"column": "x"},
    {"lognormal": {"median": 1, "cv": 1e9}}, {"choice": {"values": []}},
    [[0, 1], [1, 0]], "22:00", "24:01", "2020-01-01",
]  # fmt: skip
TOKENS = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\n", b"\r", b"\t", b"  ", b":", b"- ", b"{",
    b"}", b"[", b"]",
    b"&a ", b"*a", b"!!set", b"!!python/object:os.system ", b"<<: ", b"010", b"1:30",
    b"?", b"|", b"'", b'"', b"#", b"---\n", b"%YAML 9\n", b"9" * 4000, b"-0", b"1e999",
    b",", b";", b"\xef\xbb\xbf",
    b"<", b"&x;", b"]]>", b"NaN", b"null",
]  # fmt: skip


def mutated_bytes(rng, content):
    """Cut, doubled, spoiled."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1)
        to = min(len(content), at + rng.choice((1, 1, 2, 8, 64, 1024)))
        match rng.randrange(6):
            case 0 if content:
                content[at % len(content)] ^= 1 << rng.randrange(8)
            case 1:
                del content[at:to]
            case 2:
                content[at:at] = content[at:to] * rng.choice((1, 2, 50))
            case 3:
                content[at:at] = rng.choice(TOKENS)
            case 4:
                content[at:to] = rng.choice(TOKENS)
            case _:
                del content[at if rng.random() < 0.3 else len(content) :]
    return bytes(content)


def places(tree, path=()):
    """Every place of a tree of mappings and lists."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in inner:
        if isinstance(value, (dict, list)) and value:
            yield from places(value, (*path, key))
        else:
            yield (*path, key)


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def mutated_tree(rng, tree):
    """A value replaced, a key gone, renamed or moved, a branch taken from elsewhere."""
    tree = json.loads(json.dumps(tree)) if rng.random() < 0.9 else dict(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(list(places(tree)))
        if not path:
            continue
        node, key = at(tree, path[:-1]), path[-1]
        match rng.randrange(7):
            case 0 | 1 | 2:
                node[key] = copy.deepcopy(rng.choice(STRANGE))
            case 3:
                del node[key]
            case 4 if isinstance(node, dict):
                node[str(key) + rng.choice(("s", "_", " ", ""))] = node.pop(key)
            case 5:
                node[key] = at(tree, rng.choice(list(places(tree))[1:] or [path]))
                node[key] = json.loads(json.dumps(node[key]))
            case _:
                value = node[key]
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    node[key] = rng.choice(
                        (-value, value * 1e9, value + 0.5, str(value), [value])
                    )
                elif isinstance(value, dict):
                    strange = copy.deepcopy(rng.choice(STRANGE))
                    value[rng.choice(("kind", "x", "mode", "table"))] = strange
                else:
                    node[key] = [value, value]
    return tree


def mutated_rows(rng, text):
    """Cells of a table of text replaced, rows and columns swapped, columns gone."""
    mark = "," if b"," in text else " "
    lines = [line.split(mark) for line in text.decode(errors="replace").split("\n")]
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.choice(lines)
        cell = rng.randrange(len(row))
        match rng.randrange(6):
            case 5:
                for line in lines:
                    line.insert(cell, line.pop(0))
            case 0 | 1:
                row[cell] = str(rng.choice(STRANGE))[:6000]
            case 2:
                del row[cell:]
                row.append("")
            case 3:
                lines.append(list(row))
            case _:
                rng.shuffle(lines)
    return "\n".join(map(mark.join, lines)).encode("utf-8", "surrogatepass")


def mutated_table(rng, path):
    """A Parquet table with a column gone, of another type, or with another value."""
    table = pq.read_table(path)
    at = rng.randrange(table.num_columns)
    name = table.column_names[at]
    values = table.column(at).to_pylist()
    match rng.randrange(6):
        case 0:
            table = table.drop_columns([name])
        case 1:
            table = table.set_column(
                at, name, pa.array([str(value) for value in values])
            )
        case 2:
            table = table.slice(rng.randrange(len(table) + 1))
        case 3:
            table = table.append_column(name + "_2", table.column(at))
        case 4:
            table = table.rename_columns(
                [*table.column_names[:at], "x", *table.column_names[at + 1 :]]
            )
        case _:
            kind = table.schema.field(at).type
            strange = rng.choice(STRANGE)
            if values:
                values[rng.randrange(len(values))] = strange
            try:
                table = table.set_column(
                    at, pa.field(name, kind), pa.array(values, kind)
                )
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                table = table.set_column(at, name, pa.nulls(len(table), kind))
    pq.write_table(table, path)


def mutated_text(rng, content, suffix):
    """A file of text by what its suffix says that it is."""
    try:
        if suffix in (".yaml", ".json", ".jsonl") and rng.random() < 0.65:
            tree = yaml.safe_load(content) if suffix == ".yaml" else json.loads(content)
            tree = mutated_tree(rng, tree)
            if suffix == ".yaml":
                return yaml.safe_dump(tree, allow_unicode=True).encode(
                    "utf-8", "surrogatepass"
                )
            return json.dumps(tree).encode()
    except (ValueError, yaml.YAMLError, RecursionError, TypeError, LookupError):
        pass
    if suffix in (".csv", ".txt") and rng.random() < 0.6:
        return mutated_rows(rng, content)
    return mutated_bytes(rng, content)


def mutate_file(rng, path):
    """One file in place."""
    if path.suffix == ".parquet" and rng.random() < 0.7:
        mutated_table(rng, path)
    else:
        path.write_bytes(mutated_text(rng, path.read_bytes(), path.suffix))


def mutate_folder(rng, folder, reseal):
    """Some file of a folder: changed, gone, empty, a folder, another's.

    Digests as `reseal` has them.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    match rng.randrange(10):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(b"")
        case 2:
            path.unlink()
            path.mkdir()
        case 3:
            other = rng.choice(files)
            if other != path:
                shutil.copy(other, folder / "kept")
                shutil.copy(path, other)
                shutil.copy(folder / "kept", path)
        case _:
            mutate_file(rng, path)
    if rng.random() < 0.5:
        try:
            reseal(folder)
        except Exception:  # nothing that could be sealed
            return


def rng_of(kind, number):
    return random.Random(f"{kind} {number}")
