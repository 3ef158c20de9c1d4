"""Generators keyed by meaning: reproducible, distinct, independent of call order."""

import numpy as np

from simfed.ground import Streams
from simfed.ground.seeding import philox_4x32


def test_each_part_of_the_key_matters():
    streams = Streams(0)
    draws = [
        rng.random()
        for rng in (
            streams("batch", 1, 2),
            streams("probe", 1, 2),
            streams("batch", 2, 1),
            streams("batch", 12),
            streams("batch", "1", 2),
            Streams(1)("batch", 1, 2),
        )
    ]
    assert len(set(draws)) == len(draws)


def test_numpy_integers_name_the_same_stream_as_pythons():
    streams = Streams(3)
    a, b = streams("batch", np.int64(4), np.int32(5)), streams("batch", 4, 5)
    assert a.random() == b.random()
    assert streams.integer("init", np.int64(2)) == streams.integer("init", 2) < 2**63


def test_draws_are_pinned():
    """A change here changes every result anybody has recorded: bump the learning-code
    version.
    """
    drawn = Streams(0)("batch", 0, 1).integers(0, 1000, 4)
    assert drawn.tolist() == [94, 376, 376, 115]
    numbered = Streams(0).uniform_at(
        "stay", client=np.arange(3), number=np.array([7, 0, 7])
    )
    assert " ".join(map(float.hex, numbered.tolist())) == (
        "0x1.3d14c9a52bf54p-2 0x1.f287c9ceada8fp-1 0x1.c8958cc0e54e7p-1"
    )


def test_neighbouring_streams_are_uncorrelated():
    x = np.array(
        [Streams(0)("batch", client, 1).standard_normal(64) for client in range(200)]
    )
    correlation = np.corrcoef(x)[np.triu_indices(200, 1)]
    assert abs(correlation.mean()) < 5 / np.sqrt(len(correlation) * 64)


def test_the_block_cipher_gives_its_authors_known_answers():
    """The three vectors of Random123's kat_vectors for philox4x32 with 10 rounds."""
    vectors = [
        ("0" * 32, "0" * 16, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("f" * 32, "f" * 16, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for vector in vectors:
        counter, key, answer = (
            np.frombuffer(bytes.fromhex(words), ">u4").astype(np.uint64)
            for words in vector
        )
        words = philox_4x32(tuple(counter[:, None]), tuple(key))
        assert np.ravel(words).tolist() == answer.tolist()


def test_numbered_draws_hang_on_their_pair_alone():
    clients, numbers = np.arange(1000), np.arange(1000) % 7

    def draw(seed=0, key="x", clients=clients, numbers=numbers):
        return Streams(seed).uniform_at("stay", key, client=clients, number=numbers)

    drawn = draw()
    back = draw(clients=clients[::-3], numbers=numbers[::-3])
    assert drawn[::-3].tolist() == back.tolist()
    assert ((drawn > 0) & (drawn < 1)).all()
    others = (
        draw(1),
        draw(key="y"),
        draw(numbers=numbers + 2**33),
        draw(clients=clients + 2**33),
    )
    assert not np.isin(others, drawn).any()


def test_numbered_draws_are_uniform_and_neighbours_independent():
    n, at = 300, np.arange(300)
    drawn = Streams(0).uniform_at("stay", client=at[:, None], number=at[None])
    counts = np.bincount((drawn * 64).astype(int).ravel(), minlength=64)
    chi2 = ((counts - n * n / 64) ** 2 / (n * n / 64)).sum()
    assert abs(chi2 - 63) < 4.5 * np.sqrt(2 * 63)
    for a, b in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4.5 / np.sqrt(a.size)
