"""Dealing a training set: the server's public images, and every client's own.

The public set is drawn first, from all classes alike; the rest is dealt to the clients,
completely unless clients are some of the owners that the data name. All parts are
disjoint, and a client owns at least one sample. The split depends on the run's seed,
the labels and owners and the arguments alone, and is drawn for all clients together
(one more client is another split). `deal` is the way in; `own.split_of` calls it for a
scenario.

Sources: Dirichlet proportions of each class over the clients, Q. Li et al., "Federated
learning on non-IID data silos: an experimental study", ICDE 2022; shards, H. B. McMahan
et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simfed.ground.arrays import Floats, Ints
from simfed.ground.errors import InputError, check_known
from simfed.ground.seeding import Streams
from simfed.learn.data.sizing import UNSIZED, Sizing, deal_table, size_clients

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """The clients' training samples: ascending indices, disjoint.

    Together they are all, but for owners that are no clients, sizes that ask for fewer
    and labels that nobody holds.
    """

    public: Indices
    clients: tuple[Indices, ...]
    owners: Indices | None = None
    """Per client which owner it is; None: clients are no owners."""
    held: Indices | None = None
    """The owners that never train; None: nobody is held out."""


def deal(
    labels: NDArray[np.integer],
    streams: Streams,
    *,
    clients: int,
    public: int,
    kind: str = "dirichlet",
    alpha: float = 0.5,
    shards_per_client: int = 2,
    sigma: float = 1.0,
    owners: Indices | None = None,
    sizing: Sizing = UNSIZED,
    names: Sequence[str] = (),
    held_share: float | None = None,
) -> Split:
    """Deal the samples with these labels, `public` ones of them to the server.

    Kinds:

    - `dirichlet`: the samples of each class in proportions drawn from Dir(alpha), after
      which every client without a sample gets one from the client that then owns most.
    - `iid`, `feature`: shuffled, then cut into parts whose sizes differ by at most one.
    - `shards`: sorted by label, cut into `shards_per_client` × clients pieces, and
      dealt at random.
    - `quantity`: shuffled, then cut into parts of log-normal sizes, at least one sample
      each.
    - `natural`: a client is one of `owners`; of more owners than clients, some are
      drawn, in the order of their numbers, and the samples of the others are nobody's.

    Draws come from the streams "public", "partition" and "held-out".

    Args:
        labels: (n,) of the training samples, (n, length) in texts.
        streams: Those of the run's seed.
        clients: The number of clients, at least 1.
        public: Samples of the server.
        kind: One of those above.
        alpha: The concentration of `dirichlet`, above 0: small ones give clients few
            classes.
        shards_per_client: Of `shards`, at least 1.
        sigma: The sd of the sizes' logarithms (`quantity`).
        owners: (n,) per sample the number of its owner; None: nobody's.
        sizing: How many samples each client owns (`dirichlet`, `iid`, `feature`), at
            the least (all but `shards`; `natural` owners of fewer are no clients), and
            of how many labels (`dirichlet`).
        names: Those of the labels, for errors.
        held_share: The share of the owners, at least one of them, of whom neither a
            client nor the public set has a sample; None: nobody is held out.

    Raises:
        InputError: Too few samples, owners or labels; it names the scenario's key.

    >>> split = deal(np.arange(1000) % 10, Streams(0), clients=7, public=100, alpha=0.1)
    >>> counts = [len(samples) for samples in split.clients]
    >>> len(split.public), sum(counts), min(counts) > 0
    (100, 900, True)
    """
    labels = np.asarray(labels)
    held, dealt = None, np.arange(len(labels))
    if held_share is not None and owners is not None:
        there = np.unique(owners)
        number = max(1, round(held_share * len(there)))
        held = np.sort(streams("held-out").choice(there, number, replace=False))
        dealt = np.flatnonzero(~np.isin(owners, held))
    count = len(dealt)
    if public > count:
        raise InputError(
            f"at most the {count} training samples", where="dataset.public", got=public
        )
    if clients < 1 or clients > count - public:
        raise InputError(
            (
                f"from 1 to {count - public} clients, as many as training samples "
                f"beside the {public} public ones"
            ),
            where="clients",
            got=clients,
        )
    served = np.sort(dealt[streams("public").choice(count, public, replace=False)])
    private = np.setdiff1d(dealt, served)

    def deal_dirichlet() -> list[Indices]:
        drawn = _draw_dirichlet(labels[private], clients, alpha, rng)
        if not sizing.says:
            return _cut_dirichlet(*drawn, rng)
        texts = [names[i] if names else str(i) for i in np.unique(labels[private])]
        return _cut_sized(*drawn, sizing, texts, rng)

    def deal_even() -> list[Indices]:
        asked = sizing if sizing.sizes is not None else replace(sizing, sizes="equal")
        owned = size_clients(asked, np.ones(clients), len(private), rng)
        return _cut(rng.permutation(len(private)), owned)

    ways: dict[str, Callable[[], list[Indices]]] = {
        "dirichlet": deal_dirichlet,
        "iid": deal_even,
        "shards": lambda: _deal_shards(
            labels[private], clients, shards_per_client, rng
        ),
        "quantity": lambda: _deal_quantity(len(private), clients, sigma, sizing, rng),
        "feature": deal_even,
        "natural": list,
    }
    check_known(kind, ways, "a partition:", where="dataset.partition.kind")
    rng = streams("partition")
    if kind == "natural":
        chosen, natural = _deal_natural(
            owners, private, clients, sizing.least or 1, rng
        )
        return Split(served, natural, chosen, held)
    if (labels.dtype.kind == "f" or labels.ndim > 1) and kind in (
        "dirichlet",
        "shards",
    ):
        raise InputError(
            "natural, quantity, feature or iid, where there are no classes",
            where="dataset.partition.kind",
            got=kind,
        )
    parts = tuple(np.sort(private[part]) for part in ways[kind]())
    return Split(public=served, clients=parts)


def _deal_natural(
    owners: Indices | None,
    private: Indices,
    clients: int,
    least: int,
    rng: np.random.Generator,
) -> tuple[Indices, tuple[Indices, ...]]:
    """Return the owners that are clients, and what each has beside public samples.

    Args:
        owners: (n,) of all samples; None is refused.
        private: Samples that are not public, ascending.
        clients: Owners to draw.
        least: Owners of fewer samples are not drawn.
        rng: Draws them without replacement.
    """
    if owners is None:
        raise InputError(
            "a data set that names owners",
            where="dataset.partition.kind",
            got="natural",
            hint="owner: COLUMN, arrays owner_train, a folder per owner",
        )
    there, numbers = np.unique(owners[private], return_inverse=True)
    owned = np.bincount(numbers)
    large = np.flatnonzero(owned >= least)
    if len(there) < clients:
        raise InputError(
            f"at most {len(there)}, as many as there are owners with samples beside "
            "the public ones",
            where="clients",
            got=clients,
        )
    if len(large) < clients:
        could = int(np.sort(owned)[-clients])
        allowed = f"at most {could}, so that {clients} owners have as many"
        raise InputError(allowed, where="dataset.partition.least", got=least)
    chosen = large[np.sort(rng.choice(len(large), clients, replace=False))]
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(len(there) + 1))
    parts = tuple(private[order[starts[one] : starts[one + 1]]] for one in chosen)
    return there[chosen], parts


def _deal_quantity(
    count: int,
    clients: int,
    sigma: float,
    sizing: Sizing,
    rng: np.random.Generator,
) -> list[Indices]:
    """Return parts of log-normal sizes: one sample each, the rest in proportion."""
    exponents = rng.normal(0.0, min(sigma, 1e300), clients)  # finite for any sigma
    sizes = np.exp(exponents - exponents.max())  # at most 1: nothing overflows
    if sizing.says:
        owned = size_clients(sizing, sizes, count, rng)
        return _cut(rng.permutation(count), owned)
    rest = count - clients
    cuts = np.rint(np.cumsum(sizes / sizes.sum())[:-1] * rest).astype(np.int64)
    cuts += np.arange(1, clients)
    return [np.asarray(part) for part in np.split(rng.permutation(count), cuts)]


def _cut(samples: Indices, sizes: Ints) -> list[Indices]:
    """Return pieces of these sizes, one after another; what is beyond is nobody's."""
    ends = np.cumsum(sizes)
    return [samples[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _draw_dirichlet(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> tuple[list[Indices], Floats]:
    """Return the samples of each class, shuffled, and the clients' shares of them."""
    pieces, shares = [], []
    for label in np.unique(labels):
        pieces.append(rng.permutation(np.flatnonzero(labels == label)))
        shares.append(_draw_proportions(clients, alpha, rng))
    return pieces, np.array(shares)


def _cut_dirichlet(
    pieces: list[Indices], shares: Floats, rng: np.random.Generator
) -> list[Indices]:
    """Return the clients' samples in the drawn proportions."""
    parts: list[list[Indices]] = [[] for _ in shares[0]]
    for of_class, share in zip(pieces, shares, strict=True):
        cuts = np.rint(np.cumsum(share)[:-1] * len(of_class)).astype(np.int64)
        for part, piece in zip(parts, np.split(of_class, cuts), strict=True):
            part.append(piece)
    dealt = [np.concatenate(part) for part in parts]
    _fill_empty_clients(dealt, rng)
    return dealt


def _cut_sized(
    pieces: list[Indices],
    shares: Floats,
    sizing: Sizing,
    names: Sequence[str],
    rng: np.random.Generator,
) -> list[Indices]:
    """Return the clients' samples, as near to the drawn proportions as sizes allow."""
    stocks = np.array([len(of_class) for of_class in pieces])
    table = deal_table(shares.T * stocks, stocks, sizing, names, rng)
    cut = [_cut(one, owned) for one, owned in zip(pieces, table.T, strict=True)]
    return [np.concatenate(part) for part in zip(*cut, strict=True)]


def _draw_proportions(
    clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return one draw from Dir(alpha): (clients,) shares that sum to 1.

    Where alpha is so small that the draw underflows, its limit is drawn: one client
    takes all.
    """
    drawn: NDArray[np.float64] = rng.dirichlet(np.full(clients, alpha))
    if np.isfinite(drawn).all() and abs(drawn.sum() - 1) < 1e-6:
        return drawn
    drawn = np.zeros(clients)
    drawn[rng.integers(clients)] = 1
    return drawn


def _fill_empty_clients(parts: list[Indices], rng: np.random.Generator) -> None:
    """Give every empty client a random sample of the client that then owns most.

    Of equals it is the lowest id.

    Ends after as many moves as there are empty clients: with no fewer samples than
    clients, some client owns two while another owns none.
    """
    sizes = np.array([len(part) for part in parts])
    for empty in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        moved = rng.integers(sizes[richest])
        parts[empty] = parts[richest][moved : moved + 1]
        parts[richest] = np.delete(parts[richest], moved)
        sizes[richest] -= 1
        sizes[empty] = 1


def _deal_shards(
    labels: np.ndarray, clients: int, shards_per_client: int, rng: np.random.Generator
) -> list[Indices]:
    """Return `shards_per_client` pieces of the samples sorted by label for each client.

    Samples of one label are in random order. Places are those in `labels`.
    """
    shards = shards_per_client * clients
    if shards > len(labels):
        raise InputError(
            f"at most {len(labels) // clients}, so that no shard is empty",
            where="dataset.partition.shards_per_client",
            got=shards_per_client,
        )
    order = rng.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(by_label, shards)
    dealt = rng.permutation(shards).reshape(clients, shards_per_client)
    return [np.concatenate([pieces[shard] for shard in hand]) for hand in dealt]
