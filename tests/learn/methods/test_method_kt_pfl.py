"""KT-pFL: targets of one's own, and coefficients that descend the paper's objective."""

import pytest
import torch
import torch.nn.functional as F
from engine_worlds import played
from textbook import TWO, Textbook, answers, assert_close, distilled, flat, scenario


def objective(c, z, rows, samples, rho, temperature):
    """The paper's second and third term, for autograd."""
    total = 0.0
    for n in rows:
        target = torch.softmax(torch.tensordot(c[n], z, 1) / temperature, 1)
        log_shares = F.log_softmax(z[n] / temperature, 1)
        share = samples[n] / sum(samples[m] for m in rows)
        total = total + share * F.kl_div(log_shares, target, reduction="batchmean")
    return total + rho * ((c - 1 / len(c)) ** 2)[rows].sum()


@pytest.mark.parametrize("everybody", [True, False])
def test_rounds_and_coefficients_are_those_of_the_paper(everybody):
    made = scenario(
        {
            "kind": "kt-pfl",
            "digest_batch": 8,
            "coefficient_rate": 0.05,
            "rho": 0.3,
            "coefficient_steps": 2,
            "temperature": 1.5,
        },
        prototypes=TWO,
        participation={} if everybody else {"clients_per_round": 3},
    )
    workload, _ = played(made)
    book = Textbook(made)
    models, last_answers = book.models(), {}
    c = torch.full((4, 4), 0.25, dtype=torch.float64)

    def table():
        mean = sum(last_answers.values()) / len(last_answers)
        rows = [last_answers.get(client, mean) for client in range(4)]
        return torch.stack(rows).double()

    for round in (1, 2, 3):
        public, clients = book.public(round), book.cohort(round)
        if last_answers:
            targets = torch.softmax(torch.tensordot(c, table(), 1) / 1.5, 2)
        for client in clients:
            model = models[client]
            if last_answers:
                order = book.streams("method digest", client, round)
                model = distilled(
                    model, order, public, targets[client], 8, temperature=1.5, steps=3
                )
            models[client] = book.trained(model, client, round)
        for client in clients:
            last_answers[client] = answers(models[client], public)
        for _ in range(2):
            c.requires_grad_(True)
            [slope] = torch.autograd.grad(
                objective(c, table(), clients, book.samples, 0.3, 1.5), [c]
            )
            c = (c - 0.05 * slope).detach()
    assert_close(workload.array("server/coefficients"), c)
    for client, own in workload.kept.own.items():
        assert_close(own["weights"], flat(models[client]), 2e-6)
