"""Contract checks for parts of your own, to be called from your tests.

    def test_my_compressor_keeps_the_contract():
        simfed.testing.check_compressor(MyCompressor)

Each check plays the part through small worlds and raises `AssertionError` with one sentence for the
first clause of the contract that does not hold. simfed's own tests run the same checks over every
name of the registries.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from simfed.compress import (
    Chain,
    Codec,
    Compressor,
    Memory,
    Payload,
    codec_from_spec,
    undo,
    wire,
    with_error_feedback,
)
from simfed.compress.choice import NO_COMPRESSION, Choice, arms_for
from simfed.compress.codec import Layout, as_codec
from simfed.fleet.availability import Presence, PresenceKind, Working
from simfed.fleet.selection import ClientSelection, Facts
from simfed.fleet.tasks import Tasks
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.method import Arrival, Field, Method, Size, Who
from simfed.ground.registry import import_part, registry
from simfed.ground.seeding import Streams
from simfed.learn.attacks import Attack
from simfed.learn.rules import Rule
from simfed.policy import CHOICES, Policy, Pull, Spent, watches
from simfed.policy.text import TextPolicy
from simfed.scenario import Scenario

__all__ = [
    "check_attack",
    "check_availability",
    "check_compressor",
    "check_dataset",
    "check_device",
    "check_method",
    "check_model",
    "check_policy",
    "check_rule",
    "check_selection",
]

_ROUNDS = 6
_PULLS = 61  # a prime, so that no counter shared between objects comes round to where it was
_CHOICES = tuple(map(Choice, ("top-k", "random-k", "periodic-k")))


def check_compressor(cls: Callable[..., Any], **options: object) -> None:
    """Check a compressor class that is registered under its own name (`simfed.register`).

    A selection, a value codec or a whole codec, made as `cls(**options)`. For each:

    - its label and its spec make the same codec again;
    - encoding is a function of update, state, rng, k and layout, and changes none of them: no
      global randomness, no memory of a client; the state may be written as JSON and arrays between
      plays;
    - under every index code the encoded payload has the charged size, which is the size known
      beforehand where one is; read back, it decodes to the same bits;
    - what the receiver gets is finite, and with error feedback (where it wants or allows it)
      nothing is lost: update = decoded + residual; an undone play gives the update back;
    - a NaN or an infinity is refused (a selection that does not look at the update need not).

    For a selection moreover:

    - `select` gives min(k, d) sorted, distinct int64 indices (all d with `keeps_all`) and leaves
      the update alone;
    - it is a function of update, k, state and rng: no global randomness, no memory of a client;
    - the state may be written as JSON and read back between two plays;
    - with `mirror`, the same indices come from the length, the state and the seed alone;
    - under every index code the encoded payload has the charged size and is read back;
    - with error feedback, an undone play leaves no trace.
    """
    name = cls(**options).name
    registered = name in registry("compressor") and registry("compressor").get(name) is cls
    _require(registered, f"registered under its name: simfed.register('compressor', {name!r}, …)")
    if hasattr(cls, "select"):
        _check_selection(cls)
    with _no_global_randomness():
        accepted = [
            _check_codec(lambda: as_codec(cls(**options)), layout, k)
            for layout in _LAYOUTS
            for k in (1, 3, 1000)
        ]
    _require(any(accepted), f"one of the layouts {_LAYOUTS} to be accepted")


def _check_selection(cls: Callable[[], Compressor]) -> None:
    with _no_global_randomness():
        for length in (1, 2, 7, 100, 1000):
            for k in (1, 3, length // 3 + 1, length, length + 5):
                _check_plays(cls, length, k)
        _check_two_clients_do_not_meet(cls())


def _check_plays(cls: Callable[[], Compressor], length: int, k: int) -> None:
    compressor, streams = cls(), Streams(k)
    feedback = with_error_feedback(compressor)
    expected = length if getattr(compressor, "keeps_all", False) else min(k, length)
    residual = np.zeros(length, np.float32)
    state = None
    for round, update in enumerate(_updates(length, streams)):
        where = f"d = {length}, k = {k}, round {round}"
        total = residual + update
        try:
            rng = streams("play", round)
            payload = feedback.encode_in_place(update, residual, k, rng, state=state)
        except InputError as error:
            raise AssertionError(f"{error}; {where}") from None
        _check_indices(payload.indices, expected, length, where)
        untouched = np.array_equal(payload.values, total[payload.indices])
        sent = payload.dense()
        untouched = untouched and np.array_equal(residual, np.where(sent != 0, 0, total))
        _require(untouched, f"no change of the update; {where}")
        again, _ = with_error_feedback(cls()).encode(
            total, np.zeros_like(total), k, streams("play", round), state=_through_json(state)
        )
        same = np.array_equal(again.indices, payload.indices)
        same = same and _through_json(again.state) == _through_json(payload.state)
        _require(same, f"the same choice from the same update, k, state and rng; {where}")
        _check_mirror(compressor, payload, k, where)
        _check_wire(payload, k, where)
        state = payload.state
    undo(residual, payload)
    _require(np.array_equal(residual, total), "an undone play to leave no trace")


def _updates(length: int, streams: Streams) -> Iterator[Any]:
    """Updates with ties, zeros and signs; whole numbers, so that float32 sums are exact."""
    for round in range(_ROUNDS):
        scale = 0 if round == 2 else 3 + 1000 * (round % 2)
        yield streams("update", round).integers(-scale, scale + 1, length).astype(np.float32)


def _check_indices(indices: Any, expected: int, length: int, where: str) -> None:
    shaped = isinstance(indices, np.ndarray) and indices.dtype == np.int64 and indices.ndim == 1
    _require(shaped, f"a flat int64 array of indices; {where}")
    _require(len(indices) == expected, f"{expected} indices, got {len(indices)}; {where}")
    inside = indices[0] >= 0 and indices[-1] < length
    ordered = bool((indices[1:] > indices[:-1]).all())
    _require(inside and ordered, f"sorted, distinct indices below {length}; {where}")


def _check_mirror(compressor: Compressor, payload: Payload, k: int, where: str) -> None:
    mirror = getattr(compressor, "mirror", None)
    if mirror is None:
        return
    _require(payload.seed is not None, f"a seed beside the selection; {where}")
    mirrored = mirror(payload.length, k, state=payload.state_before, seed=payload.seed)
    same = np.array_equal(mirrored.indices, payload.indices) and mirrored.state == payload.state
    _require(same, f"the same choice from mirror as from select; {where}")


def _check_wire(payload: Payload, k: int, where: str) -> None:
    for code in wire.INDEX_CODES:
        if code == "ideal":
            continue
        data = payload.encoded(code)
        where_code = f"index code {code}; {where}"
        _require(len(data) == payload.wire_bytes(code), f"the charged size under {where_code}")
        indices, values = wire.decode(
            payload.strategy, data, payload.length, k, code, state=payload.state_before
        )
        same = np.array_equal(indices, payload.indices) and np.array_equal(values, payload.values)
        _require(same, f"the decoder to read the payload back under {where_code}")


def _check_two_clients_do_not_meet(compressor: Compressor) -> None:
    """One object serves two clients in turn exactly as it serves either alone."""

    def alone(client: int) -> list[Any]:
        return list(_plays(compressor, client))

    pairs = list(zip(_plays(compressor, 0), _plays(compressor, 1), strict=True))
    for client in (0, 1):
        met = [pair[client] for pair in pairs]
        _require(met == alone(client), "no memory of a client but the state that comes in")


def _plays(compressor: Compressor, client: int) -> Iterator[list[int]]:
    streams, state = Streams(client), None
    for round in range(_ROUNDS):
        update = streams("update", round).standard_normal(50).astype(np.float32)
        indices, state, _ = compressor.select(update, 8, state=state, rng=streams("play", round))
        yield indices.tolist()


_LAYOUTS = ([(1,)], [(7,)], [(3, 4), (5,)], [(20, 3, 3, 3), (20,), (10, 40), (10,)])


def _check_codec(make: Callable[[], Codec], layout: Layout, k: int) -> bool:
    """Plays of one codec; False where it says beforehand that such an update is not for it."""
    codec, length = make(), sum(math.prod(shape) for shape in layout)
    _check_name(codec)
    try:
        codec.size_bytes(length, k, "fixed", layout)
    except InputError:
        return False
    streams, state = Streams(k), None
    for round, update in enumerate(_updates(length, streams)):
        where = f"{codec.label}, d = {length}, k = {k}, round {round}"
        before, argument = _copy(state), update.copy()
        payload, after = codec.encode(
            update, state, streams("play", round), min(k, length), layout=layout
        )
        _require(np.array_equal(update, argument), f"no change of the update; {where}")
        _require(_alike(state, before), f"no change of the state that it was given; {where}")
        again, last = make().encode(
            argument, _copy(before), streams("play", round), min(k, length), layout=layout
        )
        same = np.array_equal(again.dense(), payload.dense()) and _alike(last, after)
        _require(same, f"the same payload from the same update, state, rng and k; {where}")
        decoded = codec.decode(payload)
        sound = decoded.dtype == np.float32 and decoded.shape == update.shape
        _require(sound and bool(np.isfinite(decoded).all()), f"a finite float32 update; {where}")
        _require(payload.k <= codec.most_entries(length, k), f"no more than most_entries; {where}")
        _check_bytes(codec, payload, min(k, length), before, where)
        if codec.feedback in ("wanted", "optional"):
            _check_residual(codec, update, before, streams("play", round), min(k, length), layout)
        else:
            _refuses_feedback(codec)
        state = after
    for wrong in (math.nan, math.inf):
        _check_refusal(codec, update, wrong, state, streams("play", 0), min(k, length), layout)
    return True


def _check_name(codec: Codec) -> None:
    for form in (codec.label, codec.spec):
        read_again = codec_from_spec(form)
        same = (read_again.label, read_again.spec) == (codec.label, codec.spec)
        _require(same, f"the same codec from {form!r}, got {read_again.label}")


def _check_bytes(codec: Codec, payload: Payload, k: int, before: Any, where: str) -> None:
    decoded, length, layout = codec.decode(payload), payload.length, payload.layout
    _require(0 < codec.payload_bytes(payload, "ideal") < math.inf, f"an ideal size; {where}")
    for code in wire.INDEX_CODES:
        stated = codec.size_bytes(length, k, code, layout)
        size = codec.payload_bytes(payload, code)
        _require(stated in (None, size), f"{stated} bytes as known, got {size}; {code}, {where}")
        if code == "ideal":
            continue
        data = codec.to_bytes(payload, code)
        _require(len(data) == size, f"the charged size {size}, got {len(data)}; {code}, {where}")
        read = codec.from_bytes(data, length, k, code, layout=layout, state=before)
        same = codec.decode(read).tobytes() == decoded.tobytes()
        _require(same, f"the decoder to read the payload back under {code}; {where}")


def _check_residual(
    codec: Codec, update: Any, state: Any, rng: np.random.Generator, k: int, layout: Layout
) -> None:
    feedback, residual = with_error_feedback(codec), update.copy()
    payload = feedback.encode_in_place(None, residual, k, rng, state=state, layout=layout)
    expected = update - payload.dense()
    _require(np.array_equal(residual, expected), f"update = decoded + residual; {codec.label}")
    undo(residual, payload)
    slack = 1e-5 * float(np.abs(update).max() + np.abs(expected).max())
    given_back = bool((np.abs(residual - update) <= slack).all())
    _require(given_back, f"an undone play to give the update back; {codec.label}")


def _refuses_feedback(codec: Codec) -> None:
    try:
        with_error_feedback(codec)
    except InputError:
        return
    _require(False, f"{codec.label} to be refused by with_error_feedback")


def _check_refusal(
    codec: Codec, update: Any, wrong: float, state: Any, rng: Any, k: int, layout: Layout
) -> None:
    if isinstance(codec, Chain) and codec.values is None:
        return  # need not look
    poisoned = update.copy()
    poisoned[len(poisoned) // 2] = wrong
    try:
        codec.encode(poisoned, state, rng, k, layout=layout)
    except InputError:
        return
    _require(False, f"{codec.label} to refuse {wrong}")


def _copy(state: Any) -> Any:
    """A state as a checkpoint gives it back."""
    if isinstance(state, Memory):
        arrays = {name: np.array(array) for name, array in state.arrays.items()}
        return Memory(_through_json(state.facts), arrays)
    return _through_json(state)


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, Memory):
        return bool(_through_json(one) == other or one == other)
    arrays = one.arrays.keys() == other.arrays.keys() and all(
        np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays
    )
    return arrays and bool(one.facts == other.facts)


def check_policy(cls: Callable[..., Policy], **options: object) -> None:
    """Check a policy class, made as `cls(arms, reward_range=…, **options)`.

    - pulls are `Pull`s of its arms with a probability in (0, 1], and a level where they set K, from
      the generator given to `pull` and nothing else: no global randomness, nothing shared between
      two clients' objects;
    - `values` has a number per arm; reading it, or `state`, changes nothing;
    - `state` is strict JSON, from which an equal policy goes on alike, at any time;
    - rewards may come late or not at all (`void`); forced pulls are worth nothing;
    - with `learns = False`, rewards make no difference;
    - with `watches_time`, what participations took is told to `watch`.
    """

    def make() -> Policy:
        policy_class = cls(arms_for(cls, _CHOICES), reward_range=(-1.0, 1.0), **options)
        return policy_class if policy_class.arms[0] in _CHOICES else TextPolicy(policy_class)

    with _no_global_randomness():
        policy = make()
        _require(isinstance(policy.learns, bool), "a bool `learns`")
        _require(set(_CHOICES) <= set(policy.arms), "the arms it was given in `arms`")
        story = _story(make())
        _require(_story(make()) == story, "the same pulls from the same generators and rewards")
        one, other = make(), make()
        _story(other, client=1)
        _require(_story(one) == story, "nothing shared between two clients' objects")
        _require(_story(make(), watched=True) == story, "values and state to change nothing")
        _require(_story(make(), reloaded=make) == story, "to go on alike from its state, as JSON")
        if not policy.learns:
            _require(_story(make(), paid=False) == story, "rewards to make no difference")
        _check_forced_pulls(make())


def _story(
    policy: Policy,
    *,
    client: int = 0,
    watched: bool = False,
    paid: bool = True,
    reloaded: Callable[[], Policy] | None = None,
) -> list[Pull]:
    """Pulls of which some get their reward late and some never."""
    streams = Streams(0)
    pulls: list[Pull] = []
    for round in range(_PULLS):
        if watched:
            policy.values()
        if watched or reloaded is not None:
            state = _through_json(policy.state())
        if reloaded is not None:
            policy = reloaded()
            policy.restore(state)
        _check_values(policy)
        pull = policy.pull(streams("policy", client, round))
        _check_pull(policy, pull)
        if watches(policy) and round % 7 != 3:
            policy.watch(pull, Spent(*streams("spent", client, round).exponential(1.0, 5).tolist()))
        if round % 7 == 3:
            policy.void(pull)
        elif round % 7 != 4:
            late = round % 7 == 5
            for earned in ([pulls[-1]] if late else []) + [pull]:
                reward = streams("reward", earned.arm.label, round).uniform(-1, 1)
                policy.update(earned, reward if paid else 0.0)
        pulls.append(pull)
    return pulls


def _check_values(policy: Policy) -> None:
    values = policy.values()
    sized = len(values) == len(policy.arms)
    _require(sized and not any(map(math.isinf, values)), "a number, or NaN, per arm in `values`")


def _check_pull(policy: Policy, pull: Pull) -> None:
    _require(isinstance(pull, Pull), f"a Pull, got {pull!r}")
    _require(pull.arm in policy.arms, f"one of its arms, got {pull.arm!r}")
    free = set(CHOICES) - {"forced"}
    _require(pull.choice in free, f"a choice of {sorted(free)}, got {pull.choice!r}")
    _require(0 < pull.probability <= 1, f"a probability above 0, up to 1, got {pull.probability!r}")
    if pull.k is not None:
        Level.read(pull.k)


def _check_forced_pulls(policy: Policy) -> None:
    _story(policy)
    before, values = json.dumps(policy.state()), repr(policy.values())
    policy.update(Pull(_CHOICES[0], "forced"), 1.0)
    _require(json.dumps(policy.state()) == before, "forced pulls to update nothing")
    policy.void(Pull(_CHOICES[0], "forced"))
    _require(repr(policy.values()) == values, "forced pulls to leave the values alone")


def check_selection(cls: Callable[..., ClientSelection], **options: object) -> None:
    """Check a selection class, made as `cls(**options)`.

    - `choose` gives sorted, distinct int64 ids of those it was offered: as many as wanted, all of
      them where there are not more, or always all of them; where it says `varies`, as many as it
      draws;
    - it is a function of ids, count, facts, round and rng: no global randomness, no memory;
    - facts of clients that it was not offered make no difference, and no column is written to;
    - it copes with clients of which nothing is known yet, and with equal ones.
    """
    with _no_global_randomness():
        for world in range(12):
            _check_choice(cls, options, Streams(world))


def _check_choice(cls: Callable[..., ClientSelection], options: Any, streams: Streams) -> None:
    clients, round = 40, 1 + 9 * (streams.seed % 3)
    facts = _made_up_facts(clients, streams)
    before = [column.copy() for column in vars(facts).values()]
    offered = np.flatnonzero(streams("offered").random(clients) < 0.7)
    selection = cls(**options)
    others = _made_up_facts(clients, Streams(1000 + streams.seed))
    strange = Facts(
        *(_replaced(a, b, offered) for a, b in zip(vars(others).values(), before, strict=True))
    )
    for count in (1, 2, len(offered) // 2, len(offered) - 1, len(offered), clients):
        where = f"{count} of {len(offered)} clients, round {round}"

        def choose(
            part: ClientSelection, told: Facts, count: int = count
        ) -> np.ndarray[Any, np.dtype[np.int64]]:
            return part.choose(offered, count, told, round=round, rng=streams("selection", round))

        chosen = choose(selection, facts)
        shaped = isinstance(chosen, np.ndarray) and chosen.dtype == np.int64 and chosen.ndim == 1
        _require(shaped, f"a flat int64 array of ids; {where}")
        _require(bool((np.diff(chosen) > 0).all()), f"sorted, distinct ids; {where}")
        _require(bool(np.isin(chosen, offered).all()), f"ids of those it was offered; {where}")
        varies = getattr(selection, "varies", False)
        enough = varies or len(chosen) in (min(count, len(offered)), len(offered))
        _require(enough, f"as many as wanted, or all, got {len(chosen)}; {where}")
        again = choose(cls(**options), facts)
        _require(np.array_equal(again, chosen), f"the same choice from the same facts; {where}")
        same = np.array_equal(choose(selection, strange), chosen)
        _require(same, f"no look at clients that were not offered; {where}")
    untouched = all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(vars(facts).values(), before, strict=True)
    )
    _require(untouched, "columns that are left alone")


def _made_up_facts(clients: int, streams: Streams) -> Facts:
    """Of which a third is unknown; in every third world nothing is, in every other all are
    equal."""
    facts = Facts.unknown(streams("samples").integers(1, 100, clients))
    if streams.seed % 3 == 0:
        return facts
    seen = streams("seen").random(clients) < 2 / 3
    scale = 0.0 if streams.seed % 2 else 1.0
    facts.duration_s[seen] = 1.0 + scale * streams("duration").random(clients)[seen]
    facts.loss[seen] = 0.5 + scale * streams("loss").random(clients)[seen]
    facts.picked[seen] = 1 + (scale * streams("picked").integers(0, 30, clients)[seen])
    facts.last_round[seen] = 1
    return facts


def _replaced(column: Any, by: Any, where: Any) -> Any:
    column = column.copy()
    column[where] = by[where]
    return column


def check_rule(cls: Callable[..., Rule], **options: object) -> None:
    """Check a merging rule, made as `cls(**options)`.

    - it is a frozen dataclass that its options make again, and `least` is at least 1;
    - `merge` answers every field with finite float32 vectors, one for all uploads or one for each,
      from `least` uploads on; it changes no argument, uses no global randomness and remembers
      nothing;
    - uploads that are all equal are answered by what they are, or by something shorter;
    - its work grows with the uploads.
    """
    import torch

    with _no_global_randomness():
        rule, again = cls(**options), cls(**options)
        _require(rule == again, "a frozen dataclass that its options make again")
        _require(rule.least >= 1, f"`least` of at least 1, got {rule.least}")
        rng = np.random.default_rng(3)
        for uploads in (rule.least, rule.least + 1, rule.least + 8):
            lengths = {"update": 50, "buffers": 0, "control": 50}
            fields = {
                name: torch.from_numpy(rng.standard_normal((uploads, n)).astype(np.float32))
                for name, n in lengths.items()
            }
            before = _bits(fields)
            merged = rule.merge(fields)
            where = f"; {uploads} uploads"
            _require(_bits(fields) == before, f"arguments that are left alone{where}")
            _require(set(merged) == set(fields), f"an answer to every field{where}")
            for name, rows in merged.items():
                shaped = rows.shape in ((lengths[name],), (uploads, lengths[name]))
                right = shaped and rows.dtype == torch.float32
                _require(right, f"float32 vectors of {name}{where}")
                _require(bool(torch.isfinite(rows).all()), f"finite numbers of {name}{where}")
            _require(_bits(again.merge(fields)) == _bits(merged), f"the same bits twice{where}")
            same = {name: field[:1].repeat(uploads, 1) for name, field in fields.items()}
            for name, merged_field in rule.merge(same).items():
                rows = torch.atleast_2d(merged_field)
                close = torch.allclose(rows, same[name][:1], atol=1e-5)
                shorter = bool((rows.norm(dim=1) < same[name][0].norm()).all())
                _require(close or shorter, f"what all agree on, or less of it, as {name}{where}")
        size = Size("any", 50, 0, 1, 9)
        few, many = (rule.work("any", size, uploads) for uploads in (rule.least, rule.least + 9))
        grows = few is None or (many is not None and few.size < many.size)
        _require(grows, "work that grows with the uploads")


def check_attack(cls: Callable[..., Attack], **options: object) -> None:
    """Check an attack class, made as `cls(**options)`.

    - it is a frozen dataclass that its options make again;
    - `poison` gives as many samples and labels as it gets, of the same types, labels that are
      classes; `craft` an update; `agree` one for all attackers, or one for each; all finite;
    - they change no argument, use no global randomness and give the same bits twice;
    - one of them gives something other than an honest client would.
    """
    import torch

    with _no_global_randomness():
        attack, again = cls(**options), cls(**options)
        _require(attack == again, "a frozen dataclass that its options make again")
        rng = np.random.default_rng(5)
        samples = torch.from_numpy(rng.integers(0, 200, (20, 1, 6, 6), dtype=np.uint8))
        labels = torch.from_numpy(np.arange(20) % 3)
        updates = torch.from_numpy(rng.standard_normal((4, 30)).astype(np.float32))
        arguments = {"samples": samples, "labels": labels, "updates": updates}
        before = _bits(arguments)

        def act(attack: Attack) -> dict[str, Any]:
            draws = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
            poisoned = attack.poison(samples, labels, draws[0], classes=3, brightest=255.0)
            return {
                "samples": poisoned[0],
                "labels": poisoned[1],
                "crafted": attack.craft(updates[0], draws[1]),
                "agreed": attack.agree(updates, 9),
                "alone": attack.agree(updates[:1], 1),
            }

        acts = act(attack)
        _require(_bits(arguments) == before, "arguments that are left alone")
        _require(_bits(act(again)) == _bits(acts), "the same bits twice")
        alike = acts["samples"].shape == samples.shape and acts["samples"].dtype == samples.dtype
        _require(alike and acts["labels"].shape == labels.shape, "as many samples and labels")
        are_classes = bool(((acts["labels"] >= 0) & (acts["labels"] < 3)).all())
        _require(are_classes and acts["labels"].dtype == labels.dtype, "labels that are classes")
        for name, most in (("crafted", 0), ("agreed", 4), ("alone", 1)):
            shaped = acts[name].shape in ((30,), *([(most, 30)] if most else []))
            sound = shaped and bool(torch.isfinite(acts[name]).all())
            _require(sound, f"an update, or one for each attacker, finite; {name}")
        honest = _bits(
            {"samples": samples, "labels": labels, "crafted": updates[0], "agreed": updates}
        )
        differs = _bits({name: acts[name] for name in list(acts)[:4]}) != honest
        _require(differs, "something other than an honest client's")


def check_availability(cls: Callable[..., PresenceKind], **options: object) -> None:
    """Check an availability class, made as `cls(**options)`.

    - `presence(clients, streams)` answers for its clients by their places: `mask`, `there`,
      `change_after` and `arrival_after` tell one truth, intervals half-open;
    - answers hang on the instant alone, in whatever order they are asked for, on the clients' ids,
      and on the streams: no global randomness;
    - where it is told what was worked (`worked`), the same work comes to the same answers, and its
      state is strict JSON, from which an equal presence goes on alike.
    """
    clients = np.array([2, 3, 5, 900_000])

    def make(there: np.ndarray[Any, np.dtype[np.int64]] = clients) -> Presence:
        return cls(**options).presence(there, Streams(1))

    instants = [0.0, *Streams(2)("instants").uniform(0.0, 4 * 86_400.0, 24).tolist()]
    with _no_global_randomness():
        one, other = make(), make()
        _check_answers(one, len(clients), instants)
        for at_s in sorted(instants, reverse=True):
            same = np.array_equal(other.mask(at_s), make().mask(at_s))
            _require(same, f"the same answer in whatever order it is asked for; at {at_s!r} s")
        if not isinstance(one, Working):
            alone = make(clients[2:])
            same = all(np.array_equal(one.mask(t)[2:], alone.mask(t)) for t in instants)
            _require(same, "answers for a client that hang on no other client of its group")
            return
        assert isinstance(other, Working)
        for nth, at_s in enumerate(sorted(instants)):
            done = nth % len(clients), at_s, 600.0, 5_000.0 * (nth % 3)
            one.worked(*done)
            again = make()
            assert isinstance(again, Working)
            again.restore(_through_json(other.state()))
            again.worked(*done)
            other = again
            later = [at_s + 3_600.0 * hours for hours in range(1, 30, 7)]
            _check_answers(one, len(clients), later)
            same = all(np.array_equal(one.mask(t), again.mask(t)) for t in later)
            _require(same, f"to go on alike from its state, as JSON; at {at_s!r} s")


def _check_answers(presence: Presence, count: int, instants: Sequence[float]) -> None:
    """All answers at these instants are one truth."""
    for at_s in instants:
        mask, where = presence.mask(at_s), f"at {at_s!r} s"
        shaped = isinstance(mask, np.ndarray) and mask.shape == (count,) and mask.dtype == np.bool_
        _require(shaped, f"a mask with a bool for each of {count} clients; {where}")
        arrivals = []
        for place in range(count):
            there = presence.there(place, at_s)
            _require(there == mask[place], f"`there` as in the mask; place {place}, {where}")
            change_s = presence.change_after(place, at_s)
            _require(change_s > at_s, f"a change later than asked; place {place}, {where}")
            if change_s < math.inf:
                just_before_s = math.nextafter(change_s, -math.inf)
                changes = presence.there(place, change_s) != there
                changes &= presence.there(place, just_before_s) == there
                _require(changes, f"a change at the instant that is named; place {place}, {where}")
            if not there:
                arrivals.append(change_s)
        arrival_s = presence.arrival_after(at_s)
        later = at_s < arrival_s <= min(arrivals, default=math.inf)
        _require(later, f"the next arrival, after the instant and not after a known one; {where}")


def check_model(
    factory: Callable[..., Any], input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10
) -> None:
    """Check a model factory, called as `factory(input_shape, classes)`.

    - it gives a `torch.nn.Module` with trainable float32 parameters, whose values hang on PyTorch's
      generator alone, and which has the sizes that `factory.facts` states, if it does;
    - (n, *input_shape) float32 samples become finite (n, classes) float32 logits; of a model with
      `tokens = True`, whole numbers (n, length) become (n, length, classes);
    - neither pass draws random numbers (no dropout), and the same pass twice gives the same bits;
    - in evaluation mode a sample's logits hang on nothing but the sample, and no buffer changes;
    - every trainable parameter gets a gradient;
    - a fast layer (one with `plain()`) computes and differentiates as what it stands for.
    """
    import torch

    from simfed.learn.models import build_model, count_facts, plain

    tokens = bool(getattr(factory, "tokens", False))
    if tokens and len(input_shape) > 1:
        input_shape = input_shape[-1:]
    with _no_global_randomness():
        model, again, other = (
            build_model(factory, input_shape, classes, seed=n) for n in (1, 1, 2)
        )
    same, changed = _same(_state(model), _state(again)), not _same(_state(model), _state(other))
    _require(same, "the same weights from the same seed")
    _require(changed, "other weights from another seed")
    declared = getattr(factory, "facts", None)
    if callable(declared):
        counted = count_facts(factory, input_shape, classes)
        _require(declared(input_shape, classes) == counted, f"the facts that it has: {counted}")
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(4, *input_shape, generator=generator)
    labels = torch.arange(4) % classes
    if tokens:
        images = torch.randint(classes, (4, *input_shape), generator=generator)
        labels = images.roll(-1, 1)
    before = torch.get_rng_state()
    _check_evaluation(model, images, classes)
    twins = (model, again, plain(model))  # copied before a pass moves its statistics
    first, second, ordinary = (_train_pass(m, images, labels) for m in twins)
    _require(_same(first, second), "the same bits from the same training pass")
    _require(
        _same(first, ordinary), "fast layers that compute and differentiate as their plain() does"
    )
    untouched = torch.equal(before, torch.get_rng_state())
    _require(untouched, "passes that draw no random numbers, such as dropout does")


def _state(module: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def _train_pass(module: Any, images: Any, labels: Any) -> dict[str, Any]:
    """What a training pass leaves behind: the gradient of every trainable parameter, the
    buffers."""
    import torch

    module.train()
    logits = module(images)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    trainable = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trainable, allow_unused=True)
    missing = [name for name, g in zip(names, gradients, strict=True) if g is None]
    _require(not missing, f"a gradient for every trainable parameter, none for {missing}")
    return {**dict(module.named_buffers()), **dict(zip(names, gradients, strict=True))}


def _check_evaluation(module: Any, images: Any, classes: int) -> None:
    import torch

    module.eval()
    before = _state(module)
    with torch.no_grad():
        logits, alone = module(images), torch.cat([module(image[None]) for image in images])
    shape = (*images.shape, classes) if getattr(module, "tokens", False) else (len(images), classes)
    shaped = tuple(logits.shape) == shape and logits.dtype == torch.float32
    sizes = ", ".join(map(str, shape))
    _require(shaped, f"({sizes}) float32 logits of {len(images)} samples")
    _require(bool(logits.isfinite().all()), "finite logits")
    scale = float(logits.abs().max())
    same = torch.allclose(logits, alone, rtol=1e-4, atol=1e-5 * scale)
    _require(same, "logits of a sample that do not hang on the samples beside it")
    _require(_same(_state(module), before), "buffers that evaluation mode leaves alone")


def check_dataset(load: Callable[[], Any]) -> None:
    """Check a data set, a callable without arguments that returns a `simfed.learn.data.Dataset`.

    - shapes, types and labels fit together (`Dataset` itself refuses what does not);
    - reading it twice gives the same samples, without global randomness;
    - it has the sizes that `load.facts` states, if it does;
    - every class has training samples;
    - normalised samples are finite float32.
    """
    from simfed.learn.catalogue import DatasetFacts
    from simfed.learn.data import Dataset

    with _no_global_randomness():
        data, again = load(), load()
    _require(isinstance(data, Dataset), f"a Dataset, got {type(data).__name__}")
    _require(data.digest == again.digest, "the same samples from reading it twice")
    declared = getattr(load, "facts", None)
    if isinstance(declared, DatasetFacts):
        _require(declared == data.facts, f"the facts that it has: {data.facts}")
    missing = sorted(set(range(data.classes)) - set(np.unique(data.train_labels).tolist()))
    missing = [] if data.task == "next-token" else missing  # an alphabet may have rare characters
    _require(not missing, f"training samples of every class, none of {missing}")
    for images in (data.train_images[:256], data.test_images[:256]):
        values = data.normalise(images)
        kind = np.int64 if data.tokens else np.float32
        sound = values.dtype == kind and values.shape == images.shape
        _require(sound and bool(np.isfinite(values).all()), "finite float32 normalised samples")


def check_device(part: Any) -> None:
    """Check a device: the path of a calibration profile, or a function that returns it.

    - it can be read (which refuses what makes no sense), and says what it is;
    - it is called what it is registered as, so that records name it;
    - at the ends of the sizes that its laws hold for, times are positive and finite.
    """
    from simfed.device import load_profile
    from simfed.device.curve import Fitted

    path = part() if callable(part) else part
    profile = load_profile(str(path))
    description = profile.provenance.get("description") or profile.provenance.get("source")
    _require(bool(description), "a description, or the source of its times")
    names = [name for name in registry("device").names() if registry("device").get(name) is part]
    _require(
        not names or profile.name in names, f"the name {profile.name!r} to be registered under"
    )
    for (quantity, model, strategy), curve in profile.curves.items():
        if not isinstance(curve, Fitted):
            continue  # rows are positive, or the profile is refused
        what = " ".join(filter(None, (quantity, model, strategy)))
        for ends in itertools.product(*curve.valid.values()):
            seconds = curve.at(dict(zip(curve.valid, ends, strict=True)))
            _require(0 < seconds < math.inf, f"positive, finite seconds for {what}")


def check_method(cls: Callable[..., Method], **options: object) -> None:
    """Check a method class, made as `cls(**options)`, in a world of four clients and noise images.

    - its options are read from a scenario, and are what makes an equal method again;
    - plans and server work come from plain facts: equal whenever and in whatever order they are
      asked for, picklable, with sizes and kinds of work that exist;
    - what is sent either way has the names and sizes of the plan;
    - `train` changes no argument, uses no global randomness, remembers nothing, and gives the same
      bits twice; `sent` changes no argument;
    - `merge` leaves alone what `send` handed out and the state it was given, takes any part of the
      cohort, late arrivals too, and measures finite losses that `losses` names;
    - states and values are trees that checkpoints and other processes get back bit for bit;
    - `model` gives weights and running statistics of the prototype's sizes, for clients that have
      never taken part as well;
    - a lost upload leaves no trace but in residuals; one and two processes, and a run resumed from
      a checkpoint with uploads under way, come to the same bits.

    Of a method that brings a workload of its own, its plans and that workload are checked.
    """
    with _no_global_randomness(), _method_world(cls, options) as scenario:
        method = scenario.method.made
        _require(isinstance(method, Method), f"a Method, got {method!r}")
        again = cls(**method.options)
        _require(again == method, "a frozen dataclass that its options make again")
        named = method.shared_loss is None or method.shared_loss in (*method.losses, "kd_loss")
        _require(named, f"`shared_loss` among `losses`, got {method.shared_loss!r}")
        _check_plans(scenario, cls(**options))
        if method.workload == Method.workload:
            _check_learning(scenario, cls(**options))
        _check_workload(scenario)


@contextmanager
def _method_world(cls: Any, options: dict[str, Any]) -> Iterator[Scenario]:
    """A scenario of the method, whose parts are known by name for as long as it is checked."""
    parts = {
        "method": cls,
        "dataset": _noise_images,
        "narrow": _normed_net(2),
        "wide": _normed_net(3),
    }
    names = {key: f"checked {key}" for key in parts}
    kinds = {key: key if key in ("method", "dataset") else "model" for key in parts}
    for key, part in parts.items():
        registry(kinds[key]).add(names[key], part)
    try:
        models = ("narrow", "wide") if cls.mixes_prototypes else ("narrow", "narrow")
        public = {"public": 12, "public_batch": 8} if cls.needs_public else {}
        yield Scenario.model_validate(
            {
                "name": "checked",
                "rounds": 3,
                "method": {"kind": names["method"], **options},
                "dataset": {"name": names["dataset"], **public},
                "prototypes": {model: {"model": names[model]} for model in models},
                "clients": [{"count": 2, "prototype": model, "device": "any"} for model in models],
                "training": {"batch_size": 8, "local_steps": 2},
                "compression": {"k": 20},
                "policy": {"kind": "ascend", "reward": {"local_loss": {"samples": 16}}},
                "safeguard": {"rollback": None},
            }
        )
    finally:
        for key in parts:
            registry(kinds[key]).remove(names[key])


def _noise_images() -> Any:
    """Ninety-six noise images of 6 × 6 pixels, in three classes."""
    from simfed.learn.data import Dataset

    rng = np.random.default_rng(8)
    images, labels = rng.integers(0, 256, (108, 1, 6, 6), dtype=np.uint8), np.arange(108) % 3
    return Dataset(
        images[:96], labels[:96], images[96:], labels[96:], classes=3, mean=(0.5,), sd=(0.3,)
    )


def _normed_net(width: int) -> Callable[..., Any]:
    """A convolution with batch norm and a linear layer: a model with running statistics."""

    def build(input_shape: tuple[int, ...], classes: int) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2, 1),  # embeddings of one width, as some methods need
            nn.Flatten(),
            nn.Linear(2 * (input_shape[1] - 2) * (input_shape[2] - 2), classes),
        )

    return build


def _check_plans(scenario: Scenario, method: Method) -> None:
    from simfed.learn.catalogue import facts

    models = {name: facts(p.model, scenario.dataset) for name, p in scenario.prototypes.items()}
    tasks = Tasks(scenario, models, lambda client: 10 + client)
    asked = list(itertools.product(range(1, 4), range(scenario.client_count)))

    def plans(planner: Method, order: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
        plan_of = {}
        for round, client in order:
            everybody = [tasks.who(c) for c in range(client + 1)]
            plan = planner.plan(tasks.setting, everybody[-1], round)
            work = tuple(planner.server_work(tasks.setting, everybody, round))
            plan_of[round, client] = dict(plan.down), tuple(plan.work), dict(plan.up), work
        return plan_of

    first = plans(method, asked)
    second = plans(type(method)(**method.options), asked[::-1])
    _require(first == second == plans(method, asked), "equal plans, whenever they are asked for")
    _require(pickle.loads(pickle.dumps(first)) == first, "plans that can be pickled")
    auxiliary = dict(method.auxiliary(tasks.setting))
    for (round, client), (down, work, up, at_server) in first.items():
        where = f"; client {client}, round {round}"
        for name, of_plan in {**down, **up}.items():
            sized = isinstance(of_plan, Field) and of_plan.entries >= 0 < of_plan.value_bytes
            _require(sized, f"a Field with a size, got {name}: {of_plan}{where}")
        _require(not any(f.compressed for f in down.values()), f"no compression downwards{where}")
        for piece in (*work, *at_server):
            names = auxiliary if piece.quantity == "auxiliary" else set(_models(scenario))
            _require(piece.quantity in _WORK, f"work of {_WORK}, got {piece}{where}")
            _require(piece.model in names, f"work of {sorted(names)}, got {piece}{where}")
            _require(piece.size > 0 and piece.times >= 0, f"work of some size, got {piece}{where}")
    _require(all(flops > 0 for flops in auxiliary.values()), "FLOPs above 0 of auxiliary work")


_WORK = ("training", "inference", "distillation", "auxiliary")


def _models(scenario: Scenario) -> list[str]:
    return [prototype.model for prototype in scenario.prototypes.values()]


def _check_learning(scenario: Scenario, method: Method) -> None:
    """The steps of a method, one by one, as no server would play them."""
    from simfed.learn.hosted import HostedWorkload

    streams = Streams(scenario.seed)
    workload = HostedWorkload(scenario, streams)
    try:
        kit, tasks = workload.kit, workload.tasks
        everybody = [tasks.who(client) for client in range(scenario.client_count)]
        other = type(method)(**method.options)  # what one object knew, the other does not
        server = _through_a_checkpoint(method.begin(kit), "the server's state")
        _require(_bits(server) == _bits(other.begin(kit)), "the same beginning twice")
        states = {who.client: method.begin_client(kit, who) for who in everybody}
        for round, cohort, staleness in ((1, [0, 1, 2, 3], 0), (2, [3], 0), (3, [1, 2], 1)):
            turns: list[tuple[Who, Any, Any]] = []
            for who in (everybody[client] for client in cohort):
                down = method.send(server, who, round)
                plan = method.plan(tasks.setting, who, round)
                _check_sizes(method, down, plan.down, f"what travels down; {who!r}, round {round}")
                turns.append((who, down, states[who.client]))
            before = _bits([(down, state) for _, down, state in turns]), _bits(server)
            came = {
                who.client: _trained(method, kit, who, round, down, state)
                for who, down, state in turns
            }
            for who, down, state in reversed(turns):
                same = _bits(_trained(other, kit, who, round, down, state)) == _bits(
                    came[who.client]
                )
                _require(same, f"the same bits from training twice; {who!r}, round {round}")
            arrivals = []
            for who, _, _ in turns:
                values, state = came[who.client]
                plan = method.plan(tasks.setting, who, round)
                _check_sizes(method, values, plan.up, f"what travels up; {who!r}, round {round}")
                values = _through_a_checkpoint(values, f"what {who!r} sends")
                before_sent = _bits(state)
                states[who.client] = _through_a_checkpoint(
                    method.sent(state, values), f"what {who!r} keeps"
                )
                _require(_bits(state) == before_sent, "`sent` to change none of its arguments")
                arrivals.append(Arrival(who, staleness, values, 1.0 - staleness / 4))
            sent = _bits([arrival.values for arrival in arrivals])
            try:
                after, losses = method.merge(kit, server, arrivals, round + staleness)
            except (KeyError, IndexError) as error:
                complaint = (
                    f"a merge that takes any part of the cohort; clients {cohort}: {error!r}"
                )
                raise AssertionError(f"expected {complaint}") from error
            told = _bits([(down, state) for _, down, state in turns]), _bits(server)
            _require(
                told == before, "merge to leave alone what was sent, and the state it was given"
            )
            _require(
                _bits([a.values for a in arrivals]) == sent, "merge to leave its arrivals alone"
            )
            _check_losses(method, losses, scenario)
            server = _through_a_checkpoint(after, "the server's state")
            for who in everybody:
                _check_model(method.model(server, states[who.client], who), who)
    finally:
        workload.close()


def _trained(
    method: Method, kit: Any, who: Who, round: int, down: Any, state: Any
) -> tuple[Any, Any]:
    import torch

    before, generator = _bits([down, state]), torch.get_rng_state()
    came: tuple[Any, Any] = method.train(kit, who, round, down, state)
    _require(_bits([down, state]) == before, f"train to change none of its arguments; {who!r}")
    untouched = torch.equal(torch.get_rng_state(), generator)
    _require(untouched, "no use of PyTorch's global generator: the kit has keyed ones")
    return came


def _check_sizes(method: Method, values: Any, planned: Any, where: str) -> None:
    _require(
        set(values) == set(planned), f"fields {sorted(planned)}, got {sorted(values)}: {where}"
    )
    for name, of_plan in planned.items():
        entries = values[name].numel()
        _require(
            entries == of_plan.entries or (method.sizes_vary and entries < of_plan.entries),
            f"{of_plan.entries} entries of {name}, got {entries}: {where}",
        )


def _check_losses(method: Method, losses: Any, scenario: Scenario) -> None:
    for prototype, measured in losses.items():
        _require(prototype in scenario.prototypes, f"losses by prototype, got {prototype!r}")
        for name, value in measured.items():
            declared = name in (*method.losses, "kd_loss") and math.isfinite(value)
            _require(declared, f"finite losses out of {method.losses}, got {name}: {value}")


def _check_model(model: Any, who: Who) -> None:
    for name, entries in (("weights", who.parameters), ("buffers", who.size.buffers)):
        got = model[name].numel() if name in model else "none"
        _require(got == entries, f"{entries} {name} in the model of {who!r}, got {got}")


def _through_a_checkpoint(tree: Any, what: str) -> Any:
    """The tree, read back from a checkpoint, which must be what came through a pipe as well."""
    import torch

    from simfed.learn.memory import Arena
    from simfed.learn.shelf import Shelf
    from simfed.learn.tree import from_plain, to_plain

    arrays: dict[str, Any] = {}
    device = torch.device("cpu")
    try:
        plain = _through_json(to_plain(tree, "tree", arrays))
    except TypeError as error:
        raise AssertionError(f"expected {what} to go into a checkpoint: {error}") from None
    read = from_plain(plain, arrays, device)
    shelf = Shelf(Arena(shared=False), [1 << 22, 0])
    piped = shelf.end(1).unpack(shelf.pack(tree))
    same = _bits(read) == _bits(tree) == _bits(piped)
    _require(same, f"{what} to come back from a checkpoint and from another process")
    return read


def _bits(tree: Any) -> Any:
    """The tree in a form that equals another only if every bit does."""
    from torch import Tensor

    if isinstance(tree, (Tensor, np.ndarray)):
        array = tree.detach().cpu().numpy() if isinstance(tree, Tensor) else tree
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(tree, Mapping):
        return {str(key): _bits(inner) for key, inner in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_bits(inner) for inner in tree]
    return tree


def _check_workload(scenario: Scenario) -> None:
    """The method as a clock plays it: uploads are lost and late, runs interrupted."""
    once = _played(scenario)
    _require(_played(scenario, workers=2) == once, "the same bits from one process and from two")
    _require(_played(scenario, resumed=True) == once, "to go on alike from a checkpoint")


def _played(scenario: Scenario, *, workers: int = 1, resumed: bool = False) -> Any:
    """Outcomes and the last state of three rounds: all; two lost, one late; two and the late
    one."""
    make = import_part(scenario.method.made.workload)
    streams = Streams(scenario.seed)
    workload = make(scenario, streams, workers=workers)
    try:
        outcomes = []

        def begun(round: int, clients: Sequence[int]) -> dict[int, Any]:
            started = {}
            for client in clients:
                task = workload.task(round, client)
                k = min(scenario.compression.k, task.plan.longest)
                choice = _CHOICES[client % 3] if task.plan.longest else NO_COMPRESSION
                started[client] = workload.execute(task, choice.at(k))
            return started

        outcomes.append(workload.merge(1, list(begun(1, [0, 1, 2, 3]).values())))
        states, server = _of_methods(workload.state())
        flying = begun(2, [0, 1, 2, 3])
        if resumed:
            facts, arrays = workload.state()
            facts, arrays = _through_json(facts), {k: v.copy() for k, v in arrays.items()}
            workload.close()
            workload = make(scenario, Streams(scenario.seed), workers=workers)
            workload.restore(facts, arrays)
            flying = {client: workload.contribution(one.task) for client, one in flying.items()}
        for client in (0, 3):
            workload.discard(flying.pop(client))
        lost_own, lost_server = _of_methods(workload.state())
        traces = [client for client in ("0", "3") if lost_own.get(client) != states.get(client)]
        clean = not traces and lost_server == server
        _require(clean, "lost uploads to leave no trace in the states of server and clients")
        outcomes.append(workload.merge(2, [flying.pop(1)]))
        flying |= begun(3, [0, 1])
        outcomes.append(workload.merge(3, list(flying.values())))
        return repr(outcomes), _bits(workload.state())
    finally:
        workload.close()


def _of_methods(state: tuple[dict[str, Any], dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    """What clients keep, by their numbers, and what the server keeps, of a hosted workload."""
    facts, arrays = state

    def named(prefix: str) -> dict[str, Any]:
        return {key: _bits(value) for key, value in arrays.items() if key.startswith(prefix)}

    states = facts.get("own", {}).get("of", {})
    clients = {client: (each, named(f"own/{client}/")) for client, each in states.items()}
    return clients, (facts.get("server"), named("server/"))


@contextmanager
def _no_global_randomness() -> Iterator[None]:
    import random

    def states() -> str:
        # the legacy generator is exactly what must not move; nothing is drawn from it here
        return repr((random.getstate(), np.random.get_state()))  # noqa: NPY002

    before = states()
    yield
    _require(states() == before, "no use of the global random generators")


def _through_json(state: Any) -> Any:
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"expected a state that strict JSON can hold: {error}") from None


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise AssertionError(f"expected {expected}")
