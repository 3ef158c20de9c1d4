"""FedKD-mutual against a version by hand.

Sizes that depend on what is learned, on the clock too.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from textbook import World, assert_same, divergence, flat, lenets, step, with_weights

from simfed.learn.lowrank import count_most_entries, count_svd_flops, decode, encode

KIND = {"kind": "fedkd-mutual", "energy_start": 0.5, "energy_end": 0.8}


def test_a_decomposition_costs_the_more_of_two_ways_and_vectors_nothing():
    assert count_svd_flops([(4, 1, 2), (7,)]) == 14 * 4 * 2**2 + 8 * 2**3
    assert count_svd_flops([(2, 4)]) == count_svd_flops([(4, 2)])
    assert count_svd_flops([(3, 3), (3, 3)]) == 2 * (6 * 3 * 3**2 + 20 * 3**3)


@given(
    shapes=st.lists(
        st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
        min_size=1,
        max_size=4,
    ),
    energy=st.floats(0.1, 1.0),
    seed=st.integers(0, 100),
)
def test_what_is_decoded_holds_the_energy_asked_for(shapes, energy, seed):
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed))
    vector = encode(flat, shapes, energy)
    assert vector.numel() <= count_most_entries(shapes)
    decoded, end = decode(F.pad(vector, (3, 2)), shapes, 3)
    assert end == 3 + vector.numel()
    for part, came in zip(flat.split(sizes), decoded.split(sizes), strict=True):
        lost, whole = (part - came).square().sum(), part.square().sum()
        assert lost <= (1 - energy) * whole + 1e-5 * whole


def truncated(flat, module, energy):
    """Every weight by NumPy's decomposition, cut at the energy.

    And how many entries travel.
    """
    parts, entries, start = [], 0, 0
    for p in module.parameters():
        part = flat[start : start + p.numel()].numpy().astype(np.float64)
        start += p.numel()
        if p.dim() < 2:
            parts.append(part)
            entries += part.size
            continue
        u, s, v = np.linalg.svd(part.reshape(p.shape[0], -1), full_matrices=False)
        rank = int(np.searchsorted(np.cumsum(s**2), energy * np.sum(s**2))) + 1
        m, n = u.shape[0], v.shape[1]
        if rank * (m + n) >= m * n:
            parts.append(part)
            entries += 1 + m * n
        else:
            parts.append(((u[:, :rank] * s[:rank]) @ v[:rank]).ravel())
            entries += 1 + rank * (m + n)
    return torch.tensor(np.concatenate(parts), dtype=torch.float32), entries


def by_hand(world, cohorts):
    """With three rounds: energies 0.5, 0.65, 0.8."""
    teachers, module = world.book.models(), world.book.module("small")
    student = flat(module)
    up, down, lengths, held = [], [], [], {}
    for round, cohort in enumerate(cohorts, start=1):
        energy = 0.5 + 0.15 * (round - 1)
        total, weight = 0.0, 0
        for c in cohort:
            whole = 1 + student.numel()
            missed = lengths[held[c] :] if c in held else [whole]
            down.append((round, c, min(whole, 1 + sum(missed))))
            held[c] = round - 1
            module = with_weights(module, student.clone())
            for x, y in world.book.batches(c, round):
                t, s = teachers[c](x), module(x)
                ce_t, ce_s = F.cross_entropy(t, y), F.cross_entropy(s, y)
                both = (ce_t + ce_s).item()
                step(teachers[c], ce_t + divergence(s.detach(), t) / both)
                step(module, ce_s + divergence(t.detach(), s) / both)
            update, entries = truncated(student - flat(module), module, energy)
            up.append((round, c, entries))
            owned = world.book.samples[c]
            total, weight = total + owned * update, weight + owned
        mean, entries = truncated(total / weight, module, energy)
        lengths.append(1 + entries)  # with its round
        student = student - mean
    return teachers, student, up, down


COHORTS = [[0, 1, 2], [0, 2], [0, 1, 2]]


def test_rounds_and_bytes_are_those_by_hand_with_a_client_that_was_away():
    world = World(lenets(KIND, mixed=True, rounds=3, charge={"downlink": True}))
    up, down = [], []
    for round, cohort in enumerate(COHORTS, start=1):
        world.play(round, clients=cohort)
        for u in world.uploads:
            up.append((round, u.task.client, u.uplink_bytes() / 4))
            down.append((round, u.task.client, u.task.downlink_bytes / 4))
    teachers, student, up_by_hand, down_by_hand = by_hand(world, COHORTS)
    assert up == up_by_hand
    assert down == down_by_hand
    assert_same(world.kept.server["weights"], student)
    for c, teacher in enumerate(teachers):
        assert_same(world.kept.own[c]["teacher"]["weights"], flat(teacher))
    # who was away was sent both merges, not the student
    assert max(n for r, _, n in down if r > 1) < len(student)


def test_a_client_whose_upload_was_lost_is_sent_what_it_then_lacks():
    world = World(lenets(KIND, rounds=3))
    world.play(1)
    uploads = [world.begin(2, client) for client in range(3)]
    world.discard(uploads[0])
    world.merge(2, uploads[1:])
    world.play(3)
    common = [world.kept.own[c]["student"] for c in range(3)]
    assert_same(common[0], common[1], 0, 1e-6)
