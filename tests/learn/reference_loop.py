"""fedkd as a textbook would write it, to compare the engine with.

Ordinary modules, one client after another, `torch.topk`, public images in batches of
128, dense vectors, a fresh tensor for everything. It shares with the engine the data
split, the initial models, the keyed draws of batches and probes, and the random
strategies' index draws; all arithmetic is its own.
"""

from __future__ import annotations

import copy
import statistics as statistics_of

import torch
import torch.nn.functional as F
from textbook import Textbook, flat, gradients

from simfed.compress import PeriodicK, RandomK
from simfed.learn.federation import draw_probe
from simfed.policy import gain, reward
from simfed.tasks.tasks import make_policy_maker


def statistics(model):
    return [b for b in model.buffers() if b.is_floating_point()]


def load(model, weights):
    torch.nn.utils.vector_to_parameters(weights, model.parameters())


def in_batches(model, images):
    with torch.no_grad():
        return torch.cat([model(part) for part in images.split(128)])


def mean_of(rows):
    return torch.stack(rows).mean(0)


class ReferenceLoop(Textbook):
    """Synchronous rounds of federated distillation with everybody taking part."""

    def __init__(self, scenario, streams, data=None):
        super().__init__(scenario, data)
        self.streams = streams
        self.models = {name: self.module(name) for name in scenario.prototypes}
        self.residuals, self.periods = {}, {}
        self.accepted, self.held, self.history = None, None, []
        self.rollbacks, self.forced = 0, None
        self.policies = [
            make_policy_maker(scenario, scenario.clients[group])()
            for group in scenario.group_of_client()
        ]

    # ---- pieces ----------------------------------------------------------------------

    def gradient(self, client, round, rate):
        """(g, the client's new statistics)."""
        model = self.models[self.prototypes[client]]
        local = self.trained(model, client, round)
        if self.made.training.local_steps == 1:
            return gradients(local), statistics(local)
        return (flat(model) - flat(local)) / rate, statistics(local)

    def indices(self, client, round, arm, update, k):
        if arm == "dense":
            return torch.arange(len(update))
        if arm == "top-k":
            return torch.topk(update.abs(), k).indices
        rng = self.streams(arm, client, round)
        if arm == "random-k":
            return RandomK().select(update, k, rng=rng).indices
        state = self.periods.get(client)
        chosen = PeriodicK().select(update, k, state=state, rng=rng)
        self.periods[client] = chosen.state
        return chosen.indices

    def own_loss(self, client, model):
        size = self.made.policy.reward.local_loss.samples
        probe = draw_probe(self.streams("probe", client), self.data.owned[client], size)
        images, labels = self.data.at(probe)
        return F.cross_entropy(in_batches(model.eval(), images), labels).item()

    def kd(self, name, targets, public):
        t = self.made.distillation.temperature
        logits = torch.cat([self.models[name](part) for part in public.split(128)])
        student = F.log_softmax(logits.double() / t, 1)
        if self.made.distillation.divergence == "student-teacher":
            return (student.exp() * (student - targets.log())).sum(1).mean()
        return (targets * (targets.log() - student)).sum(1).mean()

    def targets(self, logits):
        mean = mean_of(logits).double()
        return torch.softmax(mean / self.made.distillation.temperature, 1)

    # ---- a round ---------------------------------------------------------------------

    def round(self, round):
        """Play one round; returns what it did as a dict."""
        factor = self.made.learning_rate_factor(round)
        public = self.public(round)
        if self.accepted is None:
            self.accepted = self.initial_losses()
            self.history.append(self.accepted)
            self.held = self.own_losses()
        before = copy.deepcopy(self.models)
        periods, sent, pulls, models, arms = dict(self.periods), {}, {}, {}, {}
        for client in range(len(self.prototypes)):
            if self.forced is None:
                pulls[client] = self.policies[client].pull(
                    self.streams("policy", client, round)
                )
            arms[client] = self.forced or str(pulls[client].arm)
            models[client], sent[client] = self.client(
                client, round, arms[client], factor
            )
        targets = self.targets([in_batches(model, public) for model in models.values()])
        kd = self.learn(models, targets, public, factor)
        after = self.own_losses()
        local = {client: (self.held[client], after[client]) for client in after}
        rolled_back = self.safeguard(kd, before, periods, sent)
        self.held = self.held if rolled_back else after
        self.pay(pulls, kd, local)
        return {"kd": kd, "local": local, "arms": arms, "rolled_back": rolled_back}

    def initial_losses(self):
        public = self.public(0)
        logits = [in_batches(self.models[n].eval(), public) for n in self.prototypes]
        with torch.no_grad():
            return {
                n: self.kd(n, self.targets(logits), public).item() for n in self.models
            }

    def own_losses(self):
        """f_n of every client, where a policy learns from it."""
        if not any(policy.learns for policy in self.policies):
            return {}
        return {
            c: self.own_loss(c, self.models[n]) for c, n in enumerate(self.prototypes)
        }

    def client(self, client, round, arm, factor):
        """(the client's model as the server forms it, what was sent, dense)."""
        made, name = self.made, self.prototypes[client]
        rate = made.training.learning_rate * factor
        u, new_statistics = self.gradient(client, round, rate)
        if client in self.residuals:
            u = self.residuals[client] + u
        group = made.clients[made.group_of_client()[client]]
        k = min(made.k_of_group(group), u.numel())
        chosen = self.indices(client, round, arm, u, k)
        dense, residual = torch.zeros_like(u), u.clone()
        dense[chosen] = u[chosen]
        residual[chosen] = 0.0
        self.residuals[client] = residual
        model = copy.deepcopy(self.models[name])
        load(model, flat(model) - rate * dense)
        for statistic, new in zip(statistics(model), new_statistics, strict=True):
            statistic.copy_(new)
        return model.eval(), dense

    def pay(self, pulls, kd, local):
        rule = self.made.policy.reward
        for client, pull in pulls.items():
            if self.policies[client].learns:
                name = self.prototypes[client]
                worth = gain(
                    rule.rho, rule.beta, self.before[name], kd[name], *local[client]
                )
                self.policies[client].update(pull, reward(worth, 1.0, rule.clip)[1])

    def learn(self, models, targets, public, factor):
        """Average each prototype, then distil; the losses before the update."""
        distillation, losses = self.made.distillation, {}
        rate = (distillation.learning_rate or self.made.training.learning_rate) * factor
        for name, student in self.models.items():
            mine = [models[c] for c, n in enumerate(self.prototypes) if n == name]
            load(student, mean_of([flat(model) for model in mine]))
            for i, statistic in enumerate(statistics(student)):
                statistic.copy_(mean_of([statistics(model)[i] for model in mine]))
            optimiser = torch.optim.SGD(student.eval().parameters(), lr=rate)
            for _ in range(distillation.steps):
                optimiser.zero_grad()
                loss = self.kd(name, targets, public)
                loss.backward()
                losses.setdefault(name, loss.item())
                optimiser.step()
        return losses

    def safeguard(self, kd, before, periods, sent):
        rule = self.made.safeguard
        self.before, rollback, self.forced = self.accepted, rule.rollback, None
        usual = self.accepted
        if rule.reference.kind == "running-median":
            last = self.history[-rule.reference.window :]
            usual = {n: statistics_of.median(each[n] for each in last) for n in kd}
        if (
            rollback is None
            or self.rollbacks >= rollback.max_consecutive
            or all(kd[n] <= rollback.threshold * usual[n] for n in kd)
        ):
            self.rollbacks = 0
            self.accepted = kd
            self.history.append(kd)
            return False
        self.models = before
        if rule.residuals.kind != "as-sent":
            share = rule.residuals.factor if rule.residuals.kind == "damped" else 1.0
            self.periods = periods
            for client, dense in sent.items():
                self.residuals[client] = self.residuals[client] + share * dense
        self.rollbacks += 1
        self.forced = None if rule.forces == "none" else rule.forces
        return True
