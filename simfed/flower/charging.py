"""Charges of a run's messages, by kind of computing, and warnings for the user.

`simfed.flower.price` knows what code takes; here stands what a run makes of it: what
may not be free, what is never charged, and what the manifest's warnings say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from simfed.device import Device, Processor
from simfed.flower.computing import HostSpent
from simfed.flower.messages import Mail
from simfed.flower.price import FREE, MessagePrice, Price, list_names
from simfed.flower.work import Answer
from simfed.flower.workfile import Start, WorkFile
from simfed.ground.errors import InputError, RunFailed, listed, within
from simfed.ground.plain import Plain
from simfed.scenario.fleet_file import FleetFile

_WORK = ("train", "evaluate")
"""Types of messages that are never worked on in no time, unless somebody declares
it."""

_LEGACY = ("get_parameters", "get_properties", "reconnect")
"""Questions of legacy servers, which take no work unless seconds are declared for
them."""

_MEASURED_NODES = 20
"""The most nodes of the plays that a sentence proposes: what an app deals among its
nodes is then not far from a fleet's, and plays stay short."""

_PRICED = {"declared": "declared", "work": "measured"}


_RELATIVE = (
    "metered seconds are relative: they rank devices, settings and models by what "
    "PyTorch's formulas count, and no message of the app was measured (simfed flower "
    "measure)"
)


Watch = Callable[[Mail, Answer], None]
"""Told of every message that a node has worked on, once."""


class RunPrices:
    """The charges of one run, and the sentences about them."""

    def __init__(
        self,
        fleet: FleetFile,
        run_config: Mapping[str, Plain],
        work: WorkFile | None,
        watch: Watch | None,
    ) -> None:
        """Set up the prices of a run's nodes and server.

        Args:
            fleet: says how computing is charged.
            run_config: what the apps find in `context.run_config`.
            work: the work file's contents, where nodes are charged by one.
            watch: is told of every message that a node has worked on.
        """
        self._fleet = fleet
        self._watch = watch
        self._names: dict[str, None] = {}
        """Names that declared seconds may have for the messages that were answered."""
        self._warnings: Counter[str] = Counter()
        """Sentences for the user, and how often each happened."""
        self._unpriced: set[str] = set()
        """Operators of the app's work that metered computing passed over."""
        self._raised: dict[str, list[int]] = defaultdict(list)
        """Things that the app did on nodes and should not → the node of each time."""
        self._charged_s: dict[str, float] = defaultdict(float)
        """Type of message → seconds of all that were answered, with what the app
        slept."""
        computing, nodes = fleet.charged, fleet.client_count
        self._price = Price(computing, run_config, nodes, work)
        self.start: Start | None = None
        """When nodes' starts are charged; None: none was measured."""
        self._levelled = work is not None and any(law.counted for law in work.kinds)
        if work is not None and computing.kind == "work":
            if work.imports:
                self.start = computing.start
            for sentence in work.list_doubts(run_config, computing.start):
                self.warn(sentence)

    # ---- nodes -----------------------------------------------------------------------

    def price_answer(self, mail: Mail, answer: Answer, device: Device) -> MessagePrice:
        """Return the charge of a node's work.

        Args:
            mail: the message.
            answer: what the app made of it.
            device: the node's.

        Raises:
            InputError: it has no price.
            RunFailed: work that succeeded cannot be charged 0 s.
        """
        if self._watch is not None:
            self._watch(mail, answer)
        self._unpriced |= answer.spent.counted.unpriced
        computing, kind, names = (
            self._fleet.charged,
            mail.kind,
            list_names(answer.visible),
        )
        self._names |= dict.fromkeys(names)
        if computing.kind in _PRICED and answer.error is not None:
            why = f"nothing is {_PRICED[computing.kind]} of a reply that is an error"
            price = MessagePrice(free=why)
        elif kind in _LEGACY and not self._declares(names):
            price = MessagePrice(free="nothing is declared of it")
        else:
            where = computing.file or f"a message of type {kind} to node {mail.client}"
            with within(str(where)):
                price, doubts = self._price.price_message(
                    answer.visible, mail.client, answer.spent, device.processor
                )
                if price.free and kind in _WORK and answer.error is None:
                    raise _make_no_time_error(self._fleet, kind, price.free)
            for sentence in doubts:
                self.warn(sentence)
        if price.free and not answer.spent.slept_s:
            self.warn(f"a message of type {kind} was charged 0 s: {price.free}")
        if answer.error is None:
            self._charged_s[kind] += price.work_s + answer.spent.slept_s
        return price

    def check_some_charged(self) -> None:
        """Check that metered computing, chosen by default, has charged something.

        It is asked now that the run is over.

        Raises: `RunFailed` where no message was charged anything.
        """
        if (
            self._fleet.computing is None
            and self._charged_s
            and not any(self._charged_s.values())
        ):
            kind = next(iter(self._charged_s))
            raise _make_no_time_error(self._fleet, kind, FREE["metered"])

    def _declares(self, names: Sequence[str]) -> bool:
        """Return whether seconds are declared for this very type of message."""
        seconds = self._fleet.charged.seconds
        return self._fleet.charged.kind != "declared" or (
            isinstance(seconds, dict) and not seconds.keys().isdisjoint(names)
        )

    # ---- the server ------------------------------------------------------------------

    def price_server(
        self,
        spent: HostSpent,
        replies: int,
        size_bytes: float,
        processor: Processor | None,
    ) -> float:
        """Return nominal seconds of the server app's work since its last question.

        Args:
            spent: what this machine spent on it.
            replies: how many it got; declared seconds are for these, so 0 is free.
            size_bytes: of all replies together.
            processor: the server's; None: it has none.

        Raises:
            InputError: metered work on a server without a law for it.
        """
        declared = self._fleet.server.charged
        if declared is None or (declared.kind == "declared" and not replies):
            return 0.0
        values = {"replies": replies, "bytes": size_bytes}
        price = Price(declared).price_code(["server"], values, spent, processor)
        if replies and price.free:
            self.warn(f"the server app's work on replies was charged 0 s: {price.free}")
        return price.work_s

    # ---- what the user should know ---------------------------------------------------

    def warn(self, sentence: str) -> None:
        """Count a sentence for the manifest's warnings, where it stands once."""
        self._warnings[sentence] += 1

    def note_raised(self, client: int, what: str) -> None:
        """Note an error of the app on a node, for the warnings.

        Args:
            client: the node's number.
            what: a predicate of it: `raised KeyError: 'rows'`.
        """
        self._raised[what].append(client)

    @property
    def raised(self) -> str | None:
        """The first error of the app on a node, in a sentence."""
        return next(
            (f"node {nodes[0]} {what}" for what, nodes in self._raised.items()), None
        )

    def _describe_raised(self) -> list[str]:
        """Return a sentence for each error, with its first node."""
        sentences = []
        for what, nodes in self._raised.items():
            others = len(set(nodes)) - 1
            more = f"; so did {others:,} more" if others else ""
            sentences.append(f"node {nodes[0]} {what}{more}")
        return sentences

    def warnings(self) -> list[str]:
        """Return the manifest's warnings, those on all prices first.

        Several nodes' errors of one kind are one sentence, and so are repeated ones.
        """
        metered = self._fleet.charged.kind == "metered" and not self._levelled
        unpriced = (
            f"metered computing has no formula for {listed(sorted(self._unpriced))}"
        )
        return (
            self._find_unused_prices()
            + ([f"{unpriced}: their work is not charged"] if self._unpriced else [])
            + self._describe_raised()
            + [
                sentence if count == 1 else f"{sentence} ({count:,} times)"
                for sentence, count in self._warnings.items()
            ]
            + ([_RELATIVE] if metered and any(self._charged_s.values()) else [])
        )

    def _find_unused_prices(self) -> list[str]:
        """Return a sentence for each declared price that no message had."""
        seconds = self._fleet.charged.seconds
        if not self._names or not isinstance(seconds, dict):
            return []
        return [
            f"computing.seconds has a price for {name!r}, but messages were called "
            f"{listed(self._names)}"
            for name in seconds
            if name not in self._names and name != "default"
        ]


def _describe_cure(fleet: FleetFile) -> str:
    """Return the one thing to do where metered computing cannot tell."""
    folder = "APP_DIR" if fleet.app is None else fleet.app.folder
    if fleet.computing is None:
        nodes = min(fleet.client_count, _MEASURED_NODES)
        return f"`simfed flower measure {folder} --nodes {nodes}` measures it once"
    return (
        f"`simfed flower measure {folder}` and `--work`, `computing: measured`, or "
        "`computing: {kind: declared, seconds: …}` can"
    )


def _make_no_time_error(
    fleet: FleetFile, kind: str, why: str
) -> InputError | RunFailed:
    """Return the error of work that would be charged 0 s, with its cure.

    Args:
        fleet: says how computing is charged.
        kind: of the message.
        why: it comes to 0 s.
    """
    computing = fleet.charged
    if computing.kind == "declared":
        return InputError(
            f"more than 0 s for a successful message of type {kind}: {why}",
            where="computing.seconds",
            got=0.0,
            hint=f"an expression that stays above 0, or {kind}: 0 s if it is free",
        )
    return RunFailed(
        f"a node's work on a message of type {kind} cannot be charged 0 s: {why}, so "
        f"{computing.kind} computing cannot tell how long it takes; "
        f"{_describe_cure(fleet)}"
    )
