"""The contract of federated methods: plans of plain facts, and steps of learning.

A method is one frozen dataclass of options. From facts alone it says what a
participation is (a `Plan`: what travels down, what the device works, what travels up)
and what the server works at a merge; that is all that the clock, and a run without
learning, need. In learning it says what is sent, what a client makes of it, and how
arrivals are merged. It knows nothing of the clock, of bytes on the wire, of processes,
compression, residuals or checkpoints: the host does these for every method alike. Here
are no tensors; methods stand in `simfed.learn.methods`, one file each.

    class Scaled(Method):                                    # see docs/methods.md
        def plan(self, setting, who, round): ...             # facts → Plan
        def begin(self, kit): ...                            # the server's state
        def send(self, server, who, round): ...              # → values of plan.down
        def train(self, kit, who, round, down, own): ...     # → values of plan.up, own
        def merge(self, kit, server, arrivals, round): ...   # → server's state, losses
        def model(self, server, own, who): ...               # evaluated for a client
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, cast

from simfed.ground.plain import Plain

__all__ = [
    "CLIENT",
    "SERVER",
    "Arrival",
    "Client",
    "Field",
    "Layers",
    "Layout",
    "LocalSteps",
    "Losses",
    "Method",
    "Node",
    "Plan",
    "Setting",
    "Size",
    "State",
    "Story",
    "Values",
    "Who",
    "Work",
    "participate",
]

Kit: TypeAlias = Any
"""The learning side as methods see it, see `simfed.learn.kit.Kit`."""

Tensor: TypeAlias = Any
"""A tensor of PyTorch, which nothing here imports."""

Values = Mapping[str, Tensor]
"""Tensors by the names of a plan's fields."""

State = Mapping[str, Plain]
"""The memory of the server or of a client: tensors, numbers, text, None, and lists and
mappings of them."""

Layout = Sequence[tuple[int, ...]]
"""The shapes of the layers that make up a flat vector, in its order."""


class Layers(tuple[tuple[int, ...], ...]):
    """A layout whose layers have names.

    >>> Layers([(2, 2), (2,)], ("fc.weight", "fc.bias")).names
    ('fc.weight', 'fc.bias')
    """

    names: tuple[str, ...]

    def __new__(
        cls, shapes: Iterable[tuple[int, ...]], names: tuple[str, ...]
    ) -> Layers:
        """Return a layout of these shapes and names; no names: not known."""
        layers = super().__new__(cls, shapes)
        layers.names = names
        return layers

    def __reduce__(self) -> tuple[object, ...]:
        return Layers, (tuple(self), self.names)


Losses = Mapping[str, Mapping[str, float]]
"""The losses that a merge measured: prototype → name of a loss → value."""


class Field(NamedTuple):
    """One named vector that travels.

    Its size is known before anything is computed, unless it is `bounded`.
    """

    kind: str
    """`weights` (of a model on its way down: its number format is the scenario's),
    `update` (the change of them), `buffers` (charged only where the scenario charges
    them), or any other word."""
    entries: int
    compressed: bool = False
    """True if the client's policy chooses how it is compressed (uploads only)."""
    feedback: bool = True
    """True if what compression leaves out is added to the client's next upload."""
    value_bytes: float = 4.0
    bounded: bool = False
    """The most entries that are sent; how many is known when it is sent. Such a field
    is not compressed by policies, and its method sets `sizes_vary`."""
    layout: Layout | None = None
    """The shapes of the layers that are laid end to end in it, for codecs that look at
    them; None: the model's where it is one (see `layout_of`), else one flat vector."""

    def layout_of(self, who: Who) -> Layout | None:
        """Return the shapes of the field's layers for this client.

        These are its own, or the model's where it is `weights` or an `update` of the
        whole model. None: it is one flat vector.
        """
        if self.layout is not None:
            return self.layout
        whole = self.kind in ("update", "weights") and self.entries == who.parameters
        return who.size.shapes or None if whole else None


class Work(NamedTuple):
    """One unit of work: `times` × the seconds that a device profile has for it.

    The profile is asked by `quantity`, model and size.
    """

    quantity: str
    """`training` (one step on a batch), `private` (one that shortens each sample's
    gradient), `inference`, `distillation` (one step), or `auxiliary` (what is no pass
    of a known model: `model` is then the name of the work)."""
    model: str
    size: int
    """Samples of one step or pass."""
    times: float = 1.0
    kind: str = ""
    """Kind of its span; the quantity where it is empty."""
    name: str = ""
    """Label of its span; the kind where it is empty."""
    client: int | None = None
    """The client whose upload the server works on; None: nobody's in particular."""
    strategy: str = ""
    """The codec's label, for compression and decompression: their times are known by
    it."""
    parts: tuple[tuple[str, int, float], ...] = ()
    """(strategy, K, share of the entries) of each codec, where several make up the
    whole."""
    entries: int = 0
    """Entries that are compressed; 0: all of the model."""


Node = str
"""The place of a unit of work: `client` (the one that takes part) or `server`."""

CLIENT: Node = "client"
"""The client that takes part."""
SERVER: Node = "server"
"""The server that merges what it sends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One participation: fields down, work in this order, fields up.

    The host adds the compression of fields that say so, before the upload.
    """

    down: Mapping[str, Field]
    work: Sequence[Work]
    up: Mapping[str, Field]
    compressed: Mapping[str, Field] = field(init=False, compare=False, repr=False)
    """The fields whose compression the client's policy chooses."""
    longest: int = field(init=False)
    """Entries of the longest of them; 0: there is nothing to choose."""
    longest_name: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {
            name: field.entries for name, field in self.up.items() if field.compressed
        }
        name = max(sizes, key=lambda name: sizes[name], default="")
        object.__setattr__(self, "compressed", {name: self.up[name] for name in sizes})
        object.__setattr__(self, "longest", sizes.get(name, 0))
        object.__setattr__(self, "longest_name", name)


class Size(NamedTuple):
    """The facts of a prototype that are known without building its model.

    Plans are made of them, so a clock needs no model. Made by `simfed.tasks` for each
    prototype of a scenario.
    """

    model: str
    """Registry name of the model: the device profile's key."""
    parameters: int
    """d, the length of the flat gradient."""
    buffers: int
    """Running statistics."""
    features: int
    """Inputs of the model's last linear layer: the length of an embedding."""
    clients: int
    """Clients that have it."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the trainable parameters in the order of the flat vector, as `Layers`
    where their names are known; empty: not known."""
    head: str | None = None
    """Name of the last linear layer; None: not known, or there is none."""
    norms: tuple[str, ...] = ()
    """Names of the layers that are batch norm."""


def make_key(round: int, turn: int) -> int | str:
    """Return the key that tells the draws of a client's participations apart.

    It is the round; a client that takes part in it again has its turn there as well.

    >>> make_key(7, 0), make_key(7, 2)
    (7, '7.2')
    """
    return f"{round}.{turn}" if turn else round


class Who:
    """The plain facts of one client in one participation.

    Every step of a method gets one, and keys its draws by it. Two are equal where
    client and prototype are. Samples are counted when somebody first asks.
    """

    __slots__ = (
        "_samples",
        "client",
        "epochs",
        "features",
        "model",
        "most_steps",
        "parameters",
        "prototype",
        "size",
        "turn",
    )

    def __init__(
        self,
        client: int,
        prototype: str,
        size: Size,
        samples: int | Callable[[int], int],
        turn: int = 0,
        epochs: int | None = None,
        most_steps: int | None = None,
    ) -> None:
        """Note the facts of one participant.

        Args:
            client: its id.
            prototype: the prototype it has.
            size: facts of the prototype.
            samples: how many training samples it owns, or the function that knows; it
                is asked only when somebody asks.
            turn: how many times it has been started before in this round: a server that
                keeps clients in flight may start one again before it merges.
            epochs: passes over its data in this participation, where its group draws
                them; None: its local training is as long as the scenario's.
            most_steps: of its local training, which is cut off there; None: all.
        """
        self.client = client
        self.turn = turn
        self.epochs = epochs
        self.most_steps = most_steps
        self.prototype = prototype
        self.size = size
        self.model = size.model
        self.parameters = size.parameters
        self.features = size.features
        self._samples = samples

    @property
    def samples(self) -> int:
        """The number of training samples that it owns."""
        if not isinstance(self._samples, int):
            self._samples = int(self._samples(self.client))
        return self._samples

    def key(self, round: int) -> int | str:
        """Return the key of this participation's draws, as `Task.key`."""
        return make_key(round, self.turn)

    def __repr__(self) -> str:
        return f"<client {self.client} of {self.prototype}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Who) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, str, Size]:
        return self.client, self.prototype, self.size

    def __reduce__(self) -> tuple[object, ...]:
        facts = self.client, self.prototype, self.size, self.samples
        return Who, (*facts, self.turn, self.epochs, self.most_steps)


class LocalSteps(NamedTuple):
    """Local training: batches of the client's own data, optimiser, mean cross-entropy.

    All is as the scenario's `training` says, with what a method adds to the gradient of
    every step.
    """

    model: Values
    """`weights` and `buffers` that it begins from."""
    pull: float = 0.0
    """μ: adds μ·(w − the weights at the beginning)."""
    drift: Tensor = None
    """A tensor as long as the weights that is added as it is; None: nothing."""
    gradient: bool = False
    """True if the model after it also has `gradient`: that of its one plain step, or
    else the change of the steps over the learning rate, which is the sum of the
    gradients of plain steps."""


class Arrival(NamedTuple):
    """One upload as the server got it, decoded.

    The host makes one for each upload that a merge takes, and `Method.merge` reads
    them. An edge server's upload is one too: the mean of several clients', with a `who`
    that owns all of their samples.
    """

    who: Who
    staleness: int
    """Rounds from that in which it was trained (`train`'s) to that of the merge; 0: in
    time."""
    values: Values
    """The decoded values, named as the plan's `up`."""
    weight: float = 1.0
    """The server mode's weight for the staleness."""
    uploads: int = 1
    """The number of clients' uploads of which it is the mean: more than one where an
    edge server merged them."""

    def change(self, name: str) -> Tensor:
        """Return one of `values` as `Kit.add`, `Kit.logits_each` and `mean_of` take it.

        Where only some entries travelled, it is not made dense for them.
        """
        as_it_came = getattr(self.values, "change", None)
        return self.values[name] if as_it_came is None else as_it_came(name)


Story = Generator[Any, Any, Any]
"""A participation from its start to its end, told in verbs."""


class Client(Protocol):
    """A client in its story. Each verb is told with `yield from`."""

    @property
    def who(self) -> Who:
        """The plain facts of the client."""
        ...

    @property
    def round(self) -> int:
        """The round of the participation."""
        ...

    @property
    def plan(self) -> Plan:
        """The method's plan of the participation."""
        ...

    def receive(self, size_bytes: float | None = None) -> Story:
        """Receive the plan's fields, handle and unpack them.

        With a size, receive a message beside them, charged whatever the scenario
        charges.
        """
        ...

    def work(self, *units: Work, at: Node = CLIENT) -> Story:
        """Work the plan's units one after another, or these.

        `at` the server: on its processor, which all clients share.
        """
        ...

    def send(self, size_bytes: float | None = None) -> Story:
        """Compress and send the plan's fields.

        With a size, send a message beside them.
        """
        ...

    def wait(self, barrier: str, deadline_s: float = inf) -> Story:
        """Wait until everybody of this round who comes to this barrier is there.

        Who is lost is not waited for. At the latest, it ends `deadline_s` after the
        first has come, and whoever comes later fails. Those who come at one instant go
        on in the order of their ids.
        """
        ...


def participate(client: Client) -> Story:
    """Tell the story of most methods: receive, work, send."""
    yield from client.receive()
    yield from client.work()
    yield from client.send()


@dataclass(frozen=True)
class Setting:
    """The plain facts of a run, from which plans are made."""

    rounds: int
    clients: int
    participants: int
    """Clients per round."""
    classes: int
    public: int
    """Samples of the public set that a round uses; 0: there is none."""
    batch_size: int
    local_steps: int | None
    """Steps of local training; None: they are counted in epochs."""
    local_epochs: int | None
    prototypes: Mapping[str, Size]
    distillation_steps: int = 1
    """Steps of the server's distillation: the scenario's `distillation.steps`."""
    private: bool = False
    """True if local steps shorten each sample's gradient and add noise."""
    latest: int | None = None
    """Merges that an upload may come late and still be merged; None: any number."""

    def steps(self, who: Who, epochs: int | None = None) -> int:
        """Return the local steps of one participation, or those of so many epochs."""
        passes = epochs or who.epochs
        if passes is None and self.local_steps is not None:
            steps = self.local_steps
        else:
            passes = passes or self.local_epochs or 1
            steps = passes * -(-who.samples // self.batch_size)
        cut = epochs is None and who.most_steps is not None
        return min(steps, who.most_steps or steps) if cut else steps

    def training(self, who: Who, epochs: int | None = None) -> Work:
        """Return the unit of local training, or of so many epochs of it.

        Every step takes as long as one at the configured batch size.
        """
        steps = self.steps(who, epochs)
        if self.private:
            return Work("private", who.model, self.batch_size, steps, kind="training")
        return Work("training", who.model, self.batch_size, steps)


class Method:
    """A federated method. Subclasses are frozen dataclasses of their options.

    What is true of the whole method stands in class variables. Raises of a constructor
    are shown to the user as errors about the scenario's `method`.
    """

    needs_public: ClassVar[bool] = False
    """True if it learns from the server's unlabelled public set."""
    needs_classes: ClassVar[bool] = False
    """True if it compares classes: their logits, mean embeddings or counts."""
    mixes_prototypes: ClassVar[bool] = True
    """True if clients may have different models."""
    personal: ClassVar[bool] = False
    """True if every client keeps a model of its own, which is evaluated for itself."""
    joins_sent: ClassVar[bool] = False
    """True if only a part of that model is the client's own: it is joined with what the
    server would send the client now."""
    counts_steps: ClassVar[bool] = False
    """True if local work is one step unless the scenario says otherwise; else it is one
    epoch."""
    plain_steps: ClassVar[bool] = False
    """True if it supposes that a local step is the rate times the gradient, without a
    memory of others."""
    sums_gradients: ClassVar[bool] = False
    """True if it supposes that local steps add up gradients, each with a weight that is
    known beforehand: the optimiser is `sgd`, with or without momentum."""
    losses: ClassVar[tuple[str, ...]] = ()
    """Names of the losses that a merge measures: columns of prototypes.parquet."""
    shared_loss: ClassVar[str | None] = None
    """The one of them whose decrease is the shared part of a reward's gain."""
    local_loss: ClassVar[str] = (
        "cross-entropy of the evaluated model on the client's own data"
    )
    """The one whose decrease is the local part, in words."""
    averages: ClassVar[bool] = False
    """True if it moves each prototype by a weighted mean of what its clients send, so
    that a merging rule may stand in for that mean (`aggregation.rule`)."""
    privacy: ClassVar[tuple[str, ...]] = ()
    """Levels of the scenario's `privacy` that its uploads keep, declared by its own
    class (not inherited). `client`: the server goes by the sum of their `update`
    fields, changes of the model, and by nothing else of them; `sample`: they are made
    of the model after local steps, and of nothing else of the client's data."""
    weighs_samples: ClassVar[bool] = False
    """True if an upload counts in proportion to its client's samples."""
    weighs_staleness: ClassVar[str] = ""
    """The option that says what a late arrival counts, where the method weighs it
    itself by `Arrival.staleness`: the server mode's own weight is `constant` then.
    Empty: it does not."""
    shares_add_up: ClassVar[bool] = False
    """True if its arrivals count in shares that add up to 1: one that is merged alone
    counts in full, whatever weight the server mode gives it."""
    latest: ClassVar[int | None] = None
    """The default of `aggregation.staleness.bound`, of a method that weighs late
    arrivals."""
    safeguarded: ClassVar[bool] = False
    """True if its rounds can be undone by `safeguard.rollback`."""
    sizes_vary: ClassVar[bool] = False
    """True if some of its fields are `bounded`: its bytes depend on what is learned, so
    time-only runs need a recorded run."""
    moves_point: ClassVar[bool] = False
    """True if its clients begin where their codec says (`Codec.point`), which may be
    beside the weights."""
    two_levels: ClassVar[bool] = False
    """True if edge servers can merge its uploads before the server does: it has
    `shares` and `shift`."""
    further_epochs: ClassVar[str] = ""
    """The option that says epochs over a client's own samples beside its local
    training."""
    workload: ClassVar[str] = "simfed.learn.hosted:HostedWorkload"
    """`module:class` of its learning side: the one for all methods, unless it brings
    its own."""

    @property
    def options(self) -> dict[str, Plain]:
        """The options by name, as a scenario writes them."""
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}

    # ---- from facts alone ------------------------------------------------------------

    def check(self, setting: Setting) -> None:
        """Raise `InputError` for options that do not fit the run's facts.

        Its `where` is the option.
        """

    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        """Return the plan of this client's participation."""
        raise NotImplementedError

    def participate(self, setting: Setting, client: Client) -> Story:
        """Tell this client's story: receive, work, send.

        A method with more messages, work at the server or stages tells its own story
        (docs/extending.md).
        """
        return participate(client)

    @property
    def tells_own_story(self) -> bool:
        """True if its participations are more than receive, work, send."""
        return type(self).participate is not Method.participate

    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        """Return the server's work at this merge, beside decompression.

        Averaging is not counted.
        """
        return ()

    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        """Return FLOPs per sample of the `auxiliary` work, by its name."""
        return {}

    # ---- learning --------------------------------------------------------------------

    def begin(self, kit: Kit) -> State:
        """Return the server's state before the first round."""
        raise NotImplementedError

    def measure_first_losses(self, kit: Kit, server: State) -> Losses:
        """Return the losses before the first round, as a merge would measure them.

        A method with a `shared_loss` compares the first round's with it.
        """
        return {}

    def begin_client(self, kit: Kit, who: Who) -> State:
        """Return a client's own state, when it first takes part."""
        return {}

    def send(self, server: State, who: Who, round: int) -> Values:
        """Return the values that this client is sent, named as its plan's `down`.

        They are not changed afterwards.
        """
        return {}

    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        """Return the values that the client sends, and its state afterwards.

        The values are named as its plan's `up`. The result depends on the arguments
        only, and changes none of them. A method that leaves this as it is has
        `local_steps` and `trained`, and its clients are trained together where that is
        faster, with the same result.
        """
        steps = self.local_steps(kit, who, round, down, own)
        [(after, _)] = kit.trained_each([(who, round, steps)])
        return self.trained(kit, who, round, down, own, after)

    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        """Return the local training that a participation is."""
        raise NotImplementedError

    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        """Return what `train` returns, from the model `after` local training."""
        raise NotImplementedError

    def update_scale(self, kit: Kit, round: int) -> float:
        """Return the factor that makes an update of this round a change of the model.

        It is −η for a gradient, −1 for a difference of weights. Only methods with
        `moves_point` need it.
        """
        return -1.0

    def discount(self, staleness: int) -> float:
        """Return what an update merged so late counts, against one in time: at most 1.

        This is the method's own discount. It is asked under privacy, which merges one
        mean of all.
        """
        return 1.0

    def sent(self, own: State, values: Values) -> State:
        """Return the client's state once it knows what really travelled.

        `values` are as the server decodes them. For state that must follow what was
        sent and not what was meant.
        """
        return own

    def without(self, own: State, left: State, before: State) -> State:
        """Return the client's state `own` without an earlier participation now lost.

        It was lost only after a later one had begun: that one went on from what it
        `left`, and `before` is what it began with. For state that must stay the sum of
        what was merged.
        """
        return own

    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        """Return the server's next state, and what it measured.

        `server` is not changed.
        """
        return server, {}

    def shares(self, arrivals: Sequence[Arrival]) -> Mapping[str, Sequence[float]]:
        """Return for each field of an upload what each arrival counts.

        An edge server sums arrivals of one prototype by these numbers, so that `merge`,
        given the sum alone, does as it would with all of them. Only methods with
        `two_levels` need it.
        """
        raise NotImplementedError

    def shift(self, kit: Kit, server: State, merged: Arrival) -> State:
        """Return the state from which an edge server `send`s after a merge of its own.

        `merged` is the sum by `shares`. What a server knows beside models stays as it
        is there.
        """
        raise NotImplementedError

    def model(self, server: State, own: State, who: Who) -> Values:
        """Return `weights` and `buffers` of the model evaluated for a client.

        `server` is empty where clients have models of their own (`personal`), or the
        values that `send` gives this client (`joins_sent`).
        """
        raise NotImplementedError
