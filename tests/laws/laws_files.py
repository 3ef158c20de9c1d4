"""The files that drawn worlds name: data of every source, traces, tables of devices, a
graph.

Always the same bytes: a few kB, written once into a folder.
"""

import gzip
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet
from safetensors.numpy import save_file

TRAIN, TEST, CLASSES, OWNERS, SIDE = 96, 24, 3, 8, 6


def write_files(folder):
    """Write them all and return the folder."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("laws_parts.py"), folder / "parts.py")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    _write_arrays(folder, rng)
    _write_tables(folder, rng)
    _write_pictures(folder, rng)
    _write_leaf(folder, rng)
    _write_torchvision(folder / "vision/MNIST/raw", rng)
    return folder


TEXTS = {
    "up.csv": "s,mbps,ue0,ue1,ue2,ue3,ue4,ue5,ue6,lasts,bytes\n"
    "0,0.5,1,2,3,1,2,3,1,0.7,40000\n0.7,0.1,2,1,1,2,1,1,2,0.8,9000\n"
    "0.7,0.3,2,1,1,2,1,1,2,0.8,0\n1.5,1,1,2,1,1,2,1,1,0.5,70000\n",
    **{f"each.csv/{k}.csv": f"s,mbps\n{k},0.5\n{k + 1},1.{k}\n" for k in range(7)},
    "up.mahimahi": "".join(f"{at}\n" for at in range(20, 4000, 20)),
    "up.pensieve": "0.5 0.4\n1.2 0.1\n2.5 1.5\n",
    "air.csv": "0,1,0.4\n1,0.4,2\n2.5,0.9,0.3\n",
    "rtt.csv": "s,rtt_ms,lasts,rtt0,rtt1,rtt2,rtt3,rtt4,rtt5,rtt6\n"
    "0,40,0.6,1,2,3,4,5,6,7\n1.2,300,1.1,9,8,7,6,5,4,3\n",
    "devices.csv": "up_mbps,rtt_ms,speed,k,loss,stay_s,likely\n0.3,20,0.5,20,0.01,1,1\n"
    "1,5,1,50,0,0.5,2\n4,1,2,100,0.02,3,1\n",
    "online.csv": "client,from_s,to_s\n" + "0,0,2\n0,3.5,40\n1,0.3,5\n1,5.5,41\n",
    "board.yaml": """kind: table
name: board
training: {logistic-regression: {8: 0.1 s, 32: 0.3 s}}
compression: {logistic-regression: {top-k: {20: 0.02 s, 500: 0.1 s}}}
noise: {training: {log_sd: 0.1, straggler: {probability: 0.2, excess: 0.5}}}
power: {training: 6 W, compression: 5 W, uplink: 3 W, downlink: 2 W, idle: 1 W}
""",
    "lines.graphml": """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="u" for="edge" attr.name="up" attr.type="string"/>
<key id="d" for="edge" attr.name="down" attr.type="string"/>
<key id="l" for="edge" attr.name="latency" attr.type="string"/>
<key id="s" for="edge" attr.name="speed"><default>3</default></key>
<key id="m" for="edge" attr.name="letter"><default>M</default></key>
<key id="t" for="edge" attr.name="delay"><default>4</default></key>
<key id="o" for="edge" attr.name="of_time"><default>ms</default></key>
<key id="y" for="node" attr.name="Latitude"><default>60</default></key>
<key id="x" for="node" attr.name="Longitude"/>
<graph edgedefault="undirected"><node id="server"><data key="x">5</data></node>
<node id="a"><data key="x">6</data></node><node id="b"><data key="x">7</data></node>
<edge source="a" target="server"><data key="u">2 Mbps</data>
<data key="d">4 Mbps</data></edge>
<edge source="b" target="a"><data key="u">1 Mbps</data><data key="d">2 Mbps</data>
<data key="l">5 ms</data></edge></graph></graphml>
""",
    "lines.gml": "graph [ directed 0\n"
    ' node [ id 0 label "server" Latitude 60.0 Longitude 5.0 ]\n'
    ' node [ id 1 label "a" Latitude 60.0 Longitude 6.0 ]\n'
    ' node [ id 2 label "b" Latitude 60.0 Longitude 7.0 ]\n'
    ' edge [ source 1 target 0 up "2 Mbps" down "4 Mbps" speed 3 letter "M"'
    ' delay 4 of_time "ms" ]\n'
    ' edge [ source 2 target 1 up "1 Mbps" down "2 Mbps" latency "5 ms" speed 3'
    ' letter "M" delay 4 of_time "ms" ]\n]\n',
    "opened.txt": "what the plug-in opens\n",
}


def _draw_images(rng, count, side=SIDE):
    labels = np.arange(count) % CLASSES
    images = (
        rng.integers(0, 90, (count, 1, side, side)) + 70 * labels[:, None, None, None]
    )
    return images.astype(np.uint8), labels


def _write_arrays(folder, rng):
    (x, y), (x_test, y_test) = _draw_images(rng, TRAIN), _draw_images(rng, TEST)
    images = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    np.savez(folder / "images.npz", **images)
    np.savez(
        folder / "owned.npz",
        **images,
        owner_train=np.arange(TRAIN) // 2 % OWNERS,
        owner_test=np.arange(TEST) % OWNERS,
    )
    inputs = rng.normal(size=(TRAIN, 5))
    np.savez(folder / "numbers.npz", x_train=inputs, y_train=inputs @ np.arange(5.0))
    weights = {"linear.weight": (CLASSES, SIDE * SIDE), "linear.bias": (CLASSES,)}
    drawn = {name: np.full(shape, 0.01) for name, shape in weights.items()}
    save_file(drawn, folder / "base.safetensors")
    np.savez(folder / "public.npz", x=_draw_images(rng, 40)[0])


def _write_tables(folder, rng):
    def make(count, holes=False):
        kinds = [("warm", "cold", None)[n % 7 % (2 + holes)] for n in range(count)]
        size = [
            None if holes and n % 11 == 3 else rng.normal(n % 3) for n in range(count)
        ]
        return {
            "size": size,
            "weight": rng.normal(size=count).round(3).tolist(),
            "kind": kinds,
            "whose": [f"owner {n // 2 % OWNERS}" for n in range(count)],
            "label": [("low", "high")[n % 2] for n in range(count)],
        }

    for name, count in (("rows", TRAIN), ("holes", TRAIN), ("more", TEST)):
        table = pa.table(make(count, name == "holes"))
        table.to_pandas().to_csv(folder / f"{name}.csv", index=False)
        parquet.write_table(table, folder / f"{name}.parquet")
    x, y = _draw_images(rng, TRAIN)
    hub = pa.table(
        {f"p{n}": x[:, 0, 0, n].astype(float) for n in range(SIDE)} | {"label": y}
    )
    (folder / "hub").mkdir(exist_ok=True)
    parquet.write_table(hub, folder / "hub/train.parquet")


def _write_pictures(folder, rng):
    for owners in (1, OWNERS):
        images, labels = _draw_images(rng, TRAIN)
        root = folder / ("pictures" if owners == 1 else "albums")
        for n, (image, label) in enumerate(zip(images, labels, strict=True)):
            home = (
                root
                / (f"owner{n // 2 % owners}" if owners > 1 else "")
                / f"class{label}"
            )
            home.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(home / f"{n}.png")


def _write_leaf(folder, rng):
    """Numbers, and texts of six characters with the one that follows."""

    def draw_text():
        at = int(rng.integers(20))
        return ("to be or not to be, that is " * 2)[at : at + 7]

    names = [f"user{n}" for n in range(OWNERS)]
    for part, each in (("train", 12), ("test", 3)):
        numbers, texts = {}, {}
        for name in names:
            rows = rng.random((each, 9)).round(3).tolist()
            numbers[name] = {"x": rows, "y": [n % 3 for n in range(each)]}
            drawn = [draw_text() for _ in range(each)]
            texts[name] = {"x": [x[:6] for x in drawn], "y": [x[6] for x in drawn]}
        for place, data in (("leaf", numbers), ("texts", texts)):
            (folder / place / part).mkdir(parents=True, exist_ok=True)
            whole = {"users": names, "num_samples": [each] * OWNERS, "user_data": data}
            (folder / place / part / "all.json").write_text(json.dumps(whole))


def _write_torchvision(folder, rng):
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        images, labels = _draw_images(rng, count)
        for name, array in (
            ("images-idx3", images[:, 0]),
            ("labels-idx1", labels.astype(np.uint8)),
        ):
            head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            packed = gzip.compress(head + array.tobytes(), mtime=0)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(packed)
