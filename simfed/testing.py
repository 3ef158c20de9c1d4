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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from simfed.compress import Compressor, Payload, undo, wire, with_error_feedback
from simfed.errors import InputError
from simfed.policy import CHOICES, Policy, Pull
from simfed.registry import registry
from simfed.seeding import Streams
from simfed.selection import Facts, Selection

__all__ = [
    "check_compressor",
    "check_dataset",
    "check_device",
    "check_model",
    "check_policy",
    "check_selection",
]

_ROUNDS = 6
_PULLS = 61  # a prime, so that no counter shared between objects comes round to where it was
_ARMS = ("top-k", "random-k", "periodic-k")


def check_compressor(cls: Callable[[], Compressor]) -> None:
    """Check a compressor class that is registered under its own name (`simfed.register`).

    - `select` gives min(k, d) sorted, distinct int64 indices (all d with `keeps_all`) and leaves the
      update alone;
    - it is a function of update, k, state and rng: no global randomness, no memory of a client;
    - the state may be written as JSON and read back between two plays;
    - with `mirror`, the same indices come from the length, the state and the seed alone;
    - under every index code the encoded payload has the charged size and is read back;
    - with error feedback, an undone play leaves no trace.
    """
    name = cls().name
    known = name in registry("compressor") and registry("compressor").get(name) is cls
    _require(known, f"registered under its name: simfed.register('compressor', {name!r}, …)")
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
    made = mirror(payload.length, k, state=payload.state_before, seed=payload.seed)
    same = np.array_equal(made.indices, payload.indices) and made.state == payload.state
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


def check_policy(cls: Callable[..., Policy], **options: Any) -> None:
    """Check a policy class, made as `cls(arms, reward_range=…, **options)`.

    - pulls are `Pull`s of its arms with a probability in (0, 1], from the generator given to `pull`
      and nothing else: no global randomness, nothing shared between two clients' objects;
    - `values` has a number per arm; reading it, or `state`, changes nothing;
    - `state` is strict JSON, from which an equal policy goes on alike, at any time;
    - rewards may come late or not at all (`void`); forced pulls are worth nothing;
    - with `learns = False`, rewards make no difference.
    """

    def make() -> Policy:
        return cls(_ARMS, reward_range=(-1.0, 1.0), **options)

    with _no_global_randomness():
        policy = make()
        _require(isinstance(policy.learns, bool), "a bool `learns`")
        _require(set(_ARMS) <= set(policy.arms), "the arms it was given in `arms`")
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
        if round % 7 == 3:
            policy.void(pull)
        elif round % 7 != 4:
            late = round % 7 == 5
            for earned in ([pulls[-1]] if late else []) + [pull]:
                reward = streams("reward", _ARMS.index(earned.arm), round).uniform(-1, 1)
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


def _check_forced_pulls(policy: Policy) -> None:
    _story(policy)
    before, values = json.dumps(policy.state()), repr(policy.values())
    policy.update(Pull(_ARMS[0], "forced"), 1.0)
    _require(json.dumps(policy.state()) == before, "forced pulls to update nothing")
    policy.void(Pull(_ARMS[0], "forced"))
    _require(repr(policy.values()) == values, "forced pulls to leave the values alone")


def check_selection(cls: Callable[..., Selection], **options: Any) -> None:
    """Check a selection class, made as `cls(**options)`.

    - `choose` gives sorted, distinct int64 ids of those it was offered: as many as wanted, all of
      them where there are not more, or always all of them;
    - it is a function of ids, count, facts, round and rng: no global randomness, no memory;
    - facts of clients that it was not offered make no difference, and no column is written to;
    - it copes with clients of which nothing is known yet, and with equal ones.
    """
    with _no_global_randomness():
        for world in range(12):
            _check_choice(cls, options, Streams(world))


def _check_choice(cls: Callable[..., Selection], options: Any, streams: Streams) -> None:
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
            of: Selection, known: Facts, count: int = count
        ) -> np.ndarray[Any, np.dtype[np.int64]]:
            return of.choose(offered, count, known, round=round, rng=streams("selection", round))

        chosen = choose(selection, facts)
        shaped = isinstance(chosen, np.ndarray) and chosen.dtype == np.int64 and chosen.ndim == 1
        _require(shaped, f"a flat int64 array of ids; {where}")
        _require(bool((np.diff(chosen) > 0).all()), f"sorted, distinct ids; {where}")
        _require(bool(np.isin(chosen, offered).all()), f"ids of those it was offered; {where}")
        enough = len(chosen) in (min(count, len(offered)), len(offered))
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
    """Of which a third is unknown; in every third world nothing is, in every other all are equal."""
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


def check_model(
    factory: Callable[..., Any], input_shape: tuple[int, ...] = (1, 28, 28), classes: int = 10
) -> None:
    """Check a model factory, called as `factory(input_shape, classes)`.

    - it gives a `torch.nn.Module` with trainable float32 parameters, whose values hang on PyTorch's
      generator alone, and which has the sizes that `factory.facts` states, if it does;
    - (n, *input_shape) float32 samples become finite (n, classes) float32 logits;
    - neither pass draws random numbers (no dropout), and the same pass twice gives the same bits;
    - in evaluation mode a sample's logits hang on nothing but the sample, and no buffer changes;
    - every trainable parameter gets a gradient;
    - a fast layer (one with `plain()`) computes and differentiates as what it stands for.
    """
    import torch

    from simfed.learn.models import build_model, count_facts, plain

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
    images = torch.randn(4, *input_shape, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(4) % classes
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
    """What a training pass leaves behind: the gradient of every trainable parameter, the buffers."""
    import torch

    module.train()
    loss = torch.nn.functional.cross_entropy(module(images), labels)
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
    shaped = tuple(logits.shape) == (len(images), classes) and logits.dtype == torch.float32
    _require(shaped, f"({len(images)}, {classes}) float32 logits of {len(images)} samples")
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
    _require(not missing, f"training samples of every class, none of {missing}")
    for images in (data.train_images[:256], data.test_images[:256]):
        values = data.normalise(images)
        sound = values.dtype == np.float32 and values.shape == images.shape
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
    known = profile.provenance.get("description") or profile.provenance.get("source")
    _require(bool(known), "a description, or the source of its times")
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
