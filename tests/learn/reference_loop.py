"""The method as a textbook would write it, to compare the engine with.

Ordinary modules, one client after another, `torch.topk`, public images in batches of
128, dense vectors, a fresh tensor for everything. It shares with the engine the data
split, the initial models, the keyed draws of batches and probes, and the random
strategies' index draws; all arithmetic is its own.
"""

from __future__ import annotations

import copy
import statistics as statistics_of

import numpy as np
import torch
import torch.nn.functional as F

from simfed.compress import PeriodicK, RandomK
from simfed.ground.registry import registry
from simfed.learn.federation import (
    draw_batches,
    draw_probe,
    draw_public,
    load_federation,
)
from simfed.learn.models import build_model, plain
from simfed.policy import gain, reward


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def statistics(model):
    return [b for b in model.buffers() if b.is_floating_point()]


def load(model, weights):
    start = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(weights[start : start + p.numel()].view_as(p))
            start += p.numel()


def in_batches(model, images):
    with torch.no_grad():
        return torch.cat(
            [model(images[i : i + 128]) for i in range(0, len(images), 128)]
        )


class ReferenceLoop:
    """Synchronous rounds of federated distillation with everybody taking part."""

    def __init__(self, scenario, streams, data=None):
        self.scenario, self.streams = scenario, streams
        self.data = data if data is not None else load_federation(scenario, streams)
        self.models = {
            name: plain(
                build_model(
                    prototype.model,
                    self.data.input_shape,
                    self.data.classes,
                    seed=streams.integer("init", name),
                )
            ).to(self.data.public.device)
            for name, prototype in scenario.prototypes.items()
        }
        groups = scenario.group_of_client()
        owned = np.array([group.prototype for group in scenario.clients])[groups]
        self.clients = {
            name: np.flatnonzero(owned == name).tolist() for name in scenario.prototypes
        }
        self.name_of = {c: name for name, ids in self.clients.items() for c in ids}
        self.residuals = dict.fromkeys(self.name_of)
        self.periods = dict.fromkeys(self.name_of)
        self.accepted = None
        self.history = []
        self.held = None
        self.rollbacks = 0
        self.forced = None
        self.policies = {}
        for c, index in enumerate(scenario.group_of_client()):
            policy = scenario.policy_of_group(scenario.clients[index])
            self.policies[c] = registry("policy").get(policy.kind)(
                scenario.compression.strategies,
                reward_range=policy.reward.clip,
                **policy.options,
            )

    # ---- pieces ----------------------------------------------------------------------

    def images(self, positions):
        positions = torch.from_numpy(positions).to(self.data.labels.device)
        return self.data.samples(positions), self.data.labels[positions]

    def gradient(self, client, round, rate):
        """(g, the client's new statistics)."""
        training = self.scenario.training
        model = copy.deepcopy(self.models[self.name_of[client]]).train()
        rng = self.streams("batch", client, round)
        batches = draw_batches(
            rng, self.data.owned[client], training.batch_size, training.local_steps
        )
        start = flat(model.parameters())
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        for batch in batches:
            optimiser.zero_grad()
            images, labels = self.images(batch)
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()
        if len(batches) == 1:
            return flat([p.grad for p in model.parameters()]), statistics(model)
        return (start - flat(model.parameters())) / rate, statistics(model)

    def indices(self, client, round, arm, update, k):
        if arm == "dense":
            return torch.arange(len(update))
        if arm == "top-k":
            return torch.topk(update.abs(), k).indices
        rng = self.streams(arm, client, round)
        if arm == "random-k":
            return RandomK().select(update, k, rng=rng).indices
        chosen = PeriodicK().select(update, k, state=self.periods[client], rng=rng)
        self.periods[client] = chosen.state
        return chosen.indices

    def own_loss(self, client, model):
        size = self.scenario.policy.reward.local_loss.samples
        probe = draw_probe(self.streams("probe", client), self.data.owned[client], size)
        images, labels = self.images(probe)
        return F.cross_entropy(in_batches(model.eval(), images), labels).item()

    def kd(self, name, targets, public):
        t = self.scenario.distillation.temperature
        logits = torch.cat(
            [self.models[name](public[i : i + 128]) for i in range(0, len(public), 128)]
        )
        student = F.log_softmax(logits.double() / t, 1)
        if self.scenario.distillation.divergence == "student-teacher":
            return (student.exp() * (student - targets.log())).sum(1).mean()
        return (targets * (targets.log() - student)).sum(1).mean()

    def public(self, round):
        chosen = draw_public(
            self.streams,
            round,
            len(self.data.public),
            self.scenario.dataset.public_batch,
        )
        return self.data.public if chosen is None else self.data.public[chosen]

    def targets(self, logits):
        mean = torch.stack(logits).mean(0).double()
        return torch.softmax(mean / self.scenario.distillation.temperature, 1)

    # ---- a round ---------------------------------------------------------------------

    def round(self, round, tau_s=1.0):
        """Play one round; returns what it did as a dict."""
        factor = self.scenario.learning_rate_factor(round)
        public = self.public(round)
        if self.accepted is None:
            self.accepted = self.initial_losses()
            self.history.append(self.accepted)
            self.held = self.own_losses()
        before = copy.deepcopy(self.models)
        periods, sent, pulls, models = dict(self.periods), {}, {}, {}
        for client in sorted(self.name_of):
            if self.forced is None:
                pulls[client] = self.policies[client].pull(
                    self.streams("policy", client, round)
                )
            arm = self.forced or str(pulls[client].arm)
            models[client], sent[client] = self.client(client, round, arm, factor)
        arms = {client: self.forced or str(pulls[client].arm) for client in models}
        targets = self.targets([in_batches(models[c], public) for c in sorted(models)])
        kd = self.learn(models, targets, public, factor)
        after = self.own_losses()
        local = {client: (self.held[client], after[client]) for client in after}
        rolled_back = self.safeguard(kd, before, periods, sent)
        self.held = self.held if rolled_back else after
        return {
            "kd": kd,
            "local": local,
            "arms": arms,
            "rewards": self.pay(pulls, kd, local, tau_s),
            "rolled_back": rolled_back,
        }

    def initial_losses(self):
        public = self.public(0)
        logits = [
            in_batches(self.models[self.name_of[c]].eval(), public)
            for c in self.name_of
        ]
        with torch.no_grad():
            return {
                n: self.kd(n, self.targets(logits), public).item() for n in self.models
            }

    def own_losses(self):
        """f_n of every client, where a policy learns from it."""
        if not any(policy.learns for policy in self.policies.values()):
            return {}
        return {c: self.own_loss(c, self.models[self.name_of[c]]) for c in self.name_of}

    def client(self, client, round, arm, factor):
        """(the client's model as the server forms it, what was sent, dense)."""
        scenario, name = self.scenario, self.name_of[client]
        rate = scenario.training.learning_rate * factor
        g, new_statistics = self.gradient(client, round, rate)
        u = g if self.residuals[client] is None else self.residuals[client] + g
        group = scenario.clients[scenario.group_of_client()[client]]
        chosen = self.indices(
            client, round, arm, u, min(scenario.k_of_group(group), u.numel())
        )
        dense = torch.zeros_like(u)
        dense[chosen] = u[chosen]
        residual = u.clone()
        residual[chosen] = 0.0
        self.residuals[client] = residual
        model = copy.deepcopy(self.models[name])
        load(model, flat(self.models[name].parameters()) - rate * dense)
        for statistic, new in zip(statistics(model), new_statistics, strict=True):
            statistic.copy_(new)
        return model.eval(), dense

    def pay(self, pulls, kd, local, tau_s):
        rule, rewards = self.scenario.policy.reward, {}
        for client, pull in pulls.items():
            if self.policies[client].learns:
                name = self.name_of[client]
                worth = gain(
                    rule.rho, rule.beta, self.before[name], kd[name], *local[client]
                )
                _, rewards[client] = reward(worth, tau_s, rule.clip)
                self.policies[client].update(pull, rewards[client])
        return rewards

    def learn(self, models, targets, public, factor):
        """Average each prototype, then distil; the losses before the update."""
        distillation, losses = self.scenario.distillation, {}
        rate = (
            distillation.learning_rate or self.scenario.training.learning_rate
        ) * factor
        for name, clients in self.clients.items():
            student = self.models[name]
            load(
                student,
                torch.stack([flat(models[c].parameters()) for c in clients]).mean(0),
            )
            for i, statistic in enumerate(statistics(student)):
                statistic.copy_(
                    torch.stack([statistics(models[c])[i] for c in clients]).mean(0)
                )
            student.eval()
            for step in range(distillation.steps):
                student.zero_grad()
                loss = self.kd(name, targets, public)
                loss.backward()
                if step == 0:
                    losses[name] = loss.item()
                with torch.no_grad():
                    for p in student.parameters():
                        p -= rate * p.grad
        return losses

    def safeguard(self, kd, before, periods, sent):
        rule = self.scenario.safeguard
        self.before, rollback, self.forced = self.accepted, rule.rollback, None
        usual = self.accepted
        if rule.reference.kind == "running-median":
            usual = {
                n: statistics_of.median(
                    each[n] for each in self.history[-rule.reference.window :]
                )
                for n in kd
            }
        if (
            rollback is not None
            and self.rollbacks < rollback.max_consecutive
            and any(kd[n] > rollback.threshold * usual[n] for n in kd)
        ):
            self.models = before
            if rule.residuals.kind != "as-sent":
                share = (
                    rule.residuals.factor if rule.residuals.kind == "damped" else 1.0
                )
                self.periods = periods
                for client, dense in sent.items():
                    self.residuals[client] = self.residuals[client] + share * dense
            self.rollbacks += 1
            self.forced = None if rule.forces == "none" else rule.forces
            return True
        self.rollbacks = 0
        self.accepted = kd
        self.history.append(kd)
        return False

    def accuracy(self):
        """Per prototype, on the test set."""
        return {
            name: float(
                (
                    in_batches(m.eval(), self.data.test_samples).argmax(1)
                    == self.data.test_labels
                )
                .float()
                .mean()
            )
            for name, m in self.models.items()
        }
