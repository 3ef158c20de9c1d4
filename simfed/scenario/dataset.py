"""The part of a scenario that says what is learned from, and who owns which samples.

A data set is a registered name, or files of one's own: arrays, a table, images, LEAF's
JSON, torchvision's folders, a Hugging Face data set. Files are named by where they lie
and are not copied into runs: a run says their SHA-256.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from simfed.ground.errors import InputError
from simfed.ground.inputs import open_file
from simfed.ground.plain import Plain
from simfed.ground.registry import Only, registry
from simfed.schema.distribution import SAMPLES, Distribution, check_quantity
from simfed.schema.fields import Int, Named, NonNegative, Positive, PositiveInt
from simfed.schema.section import OnlyWith, Section

SOURCES = ("name", "file", "table", "folder", "leaf", "torchvision", "huggingface")
"""Keys of which a data set has one."""


def _check_sizes(value: Any) -> Any:
    """Return `sizes` as written.

    Raises:
        InputError: it is neither `equal`, a pair of bounds nor a distribution.
    """
    bounds = isinstance(value, (list, tuple)) and len(value) == 2
    if not (value == "equal" or bounds or isinstance(value, (dict, Distribution))):
        raise InputError("equal, [low, high] or {column: NAME}", got=value)
    return value


def _tell_sizes(value: Any) -> str:
    """Return the tag of the form of `sizes`: word, bounds or column."""
    if isinstance(value, (dict, Distribution)):
        return "column[]"
    return "word[]" if isinstance(value, str) else "bounds[]"


# The brackets keep a tag out of the key paths in error messages.
SizesOf = Annotated[
    Annotated[Literal["equal"], Tag("word[]")]
    | Annotated[tuple[PositiveInt, PositiveInt], Tag("bounds[]")]
    | Annotated[Distribution, check_quantity(SAMPLES), Tag("column[]")],
    Discriminator(_tell_sizes),
    BeforeValidator(_check_sizes),
]


class Partition(Section):
    """The deal of training samples to clients.

    `dirichlet`: the samples of each class in proportions drawn from Dir(alpha); `iid`:
    a random equal split; `shards`: sorted by label and cut into `shards_per_client` ×
    clients pieces; `natural`: a client is an owner that the data name; `quantity`: a
    random split of log-normal sizes; `feature`: an equal random split, and images that
    each client has turned by an angle of its own and under noise of its own. `sizes`,
    `least` and `classes` hold whatever is drawn; what cannot be had is refused with
    what could.
    """

    brief = None

    kind: Literal["dirichlet", "iid", "shards", "natural", "quantity", "feature"] = (
        Field(
            default="dirichlet",
            description="label skew by Dirichlet shares, none, shards of one label, "
            "owners, sizes or looks; omitted: natural where the data name "
            "owners, dirichlet with classes, else iid",
        )
    )
    alpha: Annotated[Positive, Only("kind", "dirichlet")] = Field(
        default=0.5, description="concentration; small is skewed"
    )
    shards_per_client: Annotated[PositiveInt, Only("kind", "shards")] = Field(
        default=2, description="pieces of one label, or few, for each client"
    )
    sigma: Annotated[NonNegative, Only("kind", "quantity")] = Field(
        default=1.0, description="of the logarithm of sizes; 0: all alike"
    )
    rotation: Annotated[NonNegative, Only("kind", "feature")] = Field(
        default=30.0,
        description="degrees; a client's angle is uniform from minus this to this",
    )
    noise: Annotated[NonNegative, Only("kind", "feature")] = Field(
        default=0.1,
        description="a client's own sd is uniform from 0 to this, where black to white "
        "is 1",
    )
    sizes: Annotated[SizesOf | None, Only("kind", "dirichlet", "iid", "feature")] = (
        Field(
            default=None,
            description="samples of each client: equal, [low, high], or drawn as a "
            "client's other quantities, such as from a column; omitted: as the kind "
            "has them",
        )
    )
    least: Annotated[
        PositiveInt | None,
        Only("kind", "dirichlet", "iid", "feature", "quantity", "natural"),
    ] = Field(default=None, description="samples that each client owns at the least")
    classes: Annotated[PositiveInt | None, Only("kind", "dirichlet")] = Field(
        default=None, description="labels that each client has, exactly"
    )

    @property
    def sized(self) -> bool:
        """True if clients own what the scenario says, beside what the kind draws.

        Then the deal has to be made to know whether it can be.
        """
        return any((self.sizes, self.least, self.classes))

    @model_validator(mode="after")
    def _check_bounds(self) -> Partition:
        """Refuse bounds of `sizes` that are the wrong way round.

        Raises:
            InputError: low is above high.
        """
        if isinstance(self.sizes, tuple) and self.sizes[0] > self.sizes[1]:
            allowed = "[low, high] with low at most high"
            raise InputError(allowed, where="sizes", got=list(self.sizes))
        return self


def _locate_path(value: Any, info: ValidationInfo) -> str:
    """Return a path of the file as one from here, `~` written out.

    Args:
        value: as it is written.
        info: its context has the `folder` at which relative paths start; else they
            start at the current one.

    Raises:
        InputError: no text, or an empty one.
    """
    if not isinstance(value, str) or not value:
        raise InputError("the name of a file or folder", got=value)
    folder = (info.context or {}).get("folder", "")
    return str(Path(folder) / Path(value).expanduser())


# Unlike `FoundFile`, this is not copied into runs: data are large, and their digest is
# kept.
DataPath = Annotated[
    str, BeforeValidator(_locate_path), AfterValidator(os.path.realpath)
]


def _read_hub_or_folder(value: Any, info: ValidationInfo) -> str:
    """Return a folder on disk where there is one, or where the text is a path.

    Else the text itself, a name of the hub. A text is a path if it begins with `.`, `/`
    or `~`, or ends with `/`.
    """
    path = os.path.realpath(_locate_path(value, info))
    is_path = (
        value.startswith((".", "/", "~")) or value.endswith("/") or Path(path).exists()
    )
    return path if is_path else str(value)


_PUBLIC = OnlyWith("method", "needs_public", nothing=0)


class DatasetSpec(Section):
    """The data: what the clients own, the server's unlabelled public set, the test set.

    One of `name`, `file`, `table`, `folder`, `leaf`, `torchvision` and `huggingface`
    says where they are. Without test data a fifth of each owner's rows, the same for
    every seed, is the test set. Files are read when a run begins, which keeps their
    digests and no copies.
    """

    one_of = SOURCES

    name: Annotated[str, Named("dataset")] | None = Field(
        default=None, description="see `simfed list datasets`"
    )
    file: DataPath | None = Field(
        default=None,
        description="npz with x_train, y_train, and where there are such x_test, "
        "y_test, owner_train, owner_test",
    )
    table: DataPath | None = Field(
        default=None, description="CSV with a header line, or Parquet"
    )
    folder: DataPath | None = Field(
        default=None,
        description="of images: a folder per class, or per owner and class",
    )
    leaf: DataPath | None = Field(
        default=None, description="LEAF's folder, with JSON files in `train` and `test`"
    )
    torchvision: (
        Literal["MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100"] | None
    ) = Field(default=None, description="in the folders in which torchvision keeps it")
    huggingface: Annotated[str, BeforeValidator(_read_hub_or_folder)] | None = Field(
        default=None, description="a folder with a saved data set, or a name of the hub"
    )
    root: Annotated[DataPath | None, Only("torchvision")] = Field(
        default=None,
        description="torchvision's `root`; omitted: the folders of `simfed data path`",
    )
    target: str | None = Field(
        default=None,
        description="column of a table that is learned; of huggingface `label`",
    )
    owner: str | None = Field(
        default=None, description="column that says whose a row is"
    )
    features: tuple[str, ...] | None = Field(
        default=None, description="columns that are learned from; omitted: all others"
    )
    missing: Literal["refuse", "mean", "median"] = Field(
        default="refuse",
        description="rows without a value; else numbers become the training rows' "
        "mean or median, texts the most frequent one",
    )
    test: Annotated[DataPath | None, Only("table")] = Field(
        default=None, description="a second table with the test rows"
    )
    pixels: Annotated[PositiveInt | None, Only("folder")] = Field(
        default=None, description="images are scaled to so many rows and columns"
    )
    layout: Literal["channels-first", "channels-last"] | None = Field(
        default=None,
        description="of images in a file's arrays or a column's lists; omitted: an "
        "axis of length 1 or 3 tells, see data",
    )
    task: Literal["classification", "regression"] = Field(
        default="classification", description="of your own files: classes, or numbers"
    )
    public: Annotated[Int, _PUBLIC] = Field(
        default=256, description="unlabelled images at the server"
    )
    public_file: Annotated[DataPath | None, _PUBLIC] = Field(
        default=None,
        description="npz with `x`, of which they are drawn; omitted: of the training "
        "samples",
    )
    public_batch: Annotated[PositiveInt | None, _PUBLIC] = Field(
        default=None,
        description="random subset of the public set per round; all of it if omitted",
    )
    partition: Partition = Field(
        default=Partition(), description="who owns which training samples"
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_partition(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill in the partition that the data suggest where the scenario names none."""
        if not isinstance(value, Mapping):
            return value
        partition = value.get("partition", {})
        if not isinstance(partition, Mapping) or partition:
            return value
        kind = _choose_usual_kind(value, (info.context or {}).get("folder"))
        return value if kind == "dirichlet" else {**value, "partition": {"kind": kind}}

    @model_validator(mode="after")
    def _check_source(self) -> DatasetSpec:
        """Refuse keys that the source has no use for.

        Raises:
            InputError: a table without a target; columns of what has none; a layout or
                a regression where the source says both itself.
        """
        if self.table is not None and self.target is None:
            raise InputError(
                where="target", problem="the key 'target' is missing beside table"
            )
        for key in ("target", "owner", "features", "missing"):
            if self.kind not in ("table", "huggingface") and self._says(key):
                hint = f"{key} belongs to table or huggingface"
                raise InputError(
                    problem=f"{self.kind} has no columns", where=key, hint=hint
                )
        if self.kind in ("file", "table", "huggingface"):
            return self
        if self.layout is not None:
            problem = f"{self.kind} needs no layout"
            hint = "layout belongs to file, or to lists of table or huggingface"
            raise InputError(problem=problem, where="layout", hint=hint)
        if self.task == "regression":
            problem = f"what {self.kind} names are classes"
            raise InputError("classification", where="task", problem=problem)
        return self

    def _says(self, key: str) -> bool:
        """Return whether a key has another value than its default."""
        return bool(getattr(self, key) != type(self).model_fields[key].default)

    @model_serializer(mode="wrap")
    def dump_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Plain]:
        """Return the section without keys at their defaults.

        Most belong to one source. The public set and the partition are always there:
        they count with every source.
        """
        plain: dict[str, Any] = dump(self)
        always = ("public", "public_batch", "partition")
        return {
            key: inner
            for key, inner in plain.items()
            if key in always or self._says(key)
        }

    @property
    def kind(self) -> str:
        """The key of `SOURCES` that is given, such as `name` or `table`."""
        return self.given

    @property
    def label(self) -> str:
        """The data set's name for people: its registered name, or that of its file.

        Manifests list the data set's digest under it.
        """
        value: str = getattr(self, self.kind)
        return (
            value if self.kind in ("name", "torchvision") else Path(value).name or value
        )

    @property
    def source(self) -> DatasetSpec:
        """A copy without public set and partition.

        Two are equal where the same samples are read.
        """
        public = {"public": 0, "public_file": None, "public_batch": None}
        return self.model_copy(update={**public, "partition": Partition()})

    @property
    def paths(self) -> dict[str, str]:
        """Key → path of each file and folder that the section names.

        A `huggingface` name of the hub is among them; nobody has looked whether they
        exist.
        """
        keys = {*SOURCES, "root", "test", "public_file"} - {"name", "torchvision"}
        known = (key for key in type(self).model_fields if key in keys)
        return {key: path for key in known if (path := getattr(self, key)) is not None}


def _choose_usual_kind(written: Mapping[str, Any], folder: Any) -> str:
    """Return the partition of a data set that names none: by owners if it has some.

    Args:
        written: the section as written.
        folder: where relative paths start; None: at the current folder.

    Returns:
        `natural` where the data name owners, `iid` for numbers to be predicted, else
        `dirichlet`.
    """
    if "name" in written:
        named, known = written["name"], registry("dataset")
        facts = getattr(known.get(named), "facts", None) if named in known else None
        return "natural" if getattr(facts, "owners", 0) else "dirichlet"
    if written.get("owner") or written.get("leaf"):
        return "natural"
    if written.get("task") == "regression":
        return "iid"
    start = Path(folder) if folder is not None else Path()
    if isinstance(file := written.get("file"), str) and _has_owners(start / file):
        return "natural"
    if isinstance(images := written.get("folder"), str) and _is_deep(start / images):
        return "natural"
    return "dirichlet"


def _has_owners(path: Path) -> bool:
    """Return whether there are owners in an npz file.

    What is wrong with it is said when it is read.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return "owner_train.npy" in archive.namelist()
    except (InputError, zipfile.BadZipFile):
        return False


def _is_deep(path: Path) -> bool:
    """Return whether a folder of images has folders of owners.

    They have folders of classes in them; below `train` where there is one.
    """
    try:
        path = path / "train" if (path / "train").is_dir() else path
        first = next(
            (entry for entry in sorted(path.iterdir()) if entry.is_dir()), None
        )
        return first is not None and any(entry.is_dir() for entry in first.iterdir())
    except OSError:
        return False
