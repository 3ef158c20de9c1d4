"""fedkd as a textbook would write it, to compare the engine with.

Ordinary modules, one client after another, `torch.topk`, public images in batches of
128, dense vectors, a fresh tensor for everything. It shares with the engine the data
split, the initial models, the keyed draws of batches and probes, and the random
strategies' index draws; all arithmetic is its own.
"""

import copy
from statistics import median

import torch
import torch.nn.functional as F
from textbook import Textbook, descend, flat, gradients, with_weights

from simfed.compress import PeriodicK, RandomK
from simfed.learn.federation import draw_probe
from simfed.policy import gain, reward
from simfed.tasks.tasks import make_policy_maker


def statistics(model):
    return [b.flatten() for b in model.buffers() if b.is_floating_point()]


def in_batches(model, images):
    return torch.cat([model(part) for part in images.split(128)])


def mean_of(rows):
    return torch.stack(rows).mean(0)


class ReferenceLoop(Textbook):
    """Synchronous rounds of federated distillation with everybody taking part."""

    def __init__(self, scenario, streams, data=None):
        super().__init__(scenario, data)
        self.streams = streams
        self.models = {name: self.module(name) for name in scenario.prototypes}
        self.residuals, self.periods, self.history = {}, {}, []
        self.held, self.rollbacks, self.forced = None, 0, None
        self.groups = [scenario.clients[g] for g in scenario.group_of_client()]
        self.policies = [make_policy_maker(scenario, group)() for group in self.groups]

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

    @torch.no_grad()
    def own_losses(self):
        """f_n of every client, where a policy learns from it."""
        losses = {}
        if any(policy.learns for policy in self.policies):
            size = self.made.policy.reward.local_loss.samples
            for client, name in enumerate(self.prototypes):
                rng = self.streams("probe", client)
                probe = draw_probe(rng, self.data.owned[client], size)
                images, labels = self.data.at(probe)
                logits = in_batches(self.models[name].eval(), images)
                losses[client] = F.cross_entropy(logits, labels).item()
        return losses

    def kd(self, name, targets, public):
        t = self.made.distillation.temperature
        logits = in_batches(self.models[name], public)
        student = F.log_softmax(logits.double() / t, 1)
        if self.made.distillation.divergence == "student-teacher":
            return (student.exp() * (student - targets.log())).sum(1).mean()
        return (targets * (targets.log() - student)).sum(1).mean()

    @torch.no_grad()
    def targets(self, models, public):
        logits = mean_of([in_batches(model.eval(), public) for model in models])
        return torch.softmax(logits.double() / self.made.distillation.temperature, 1)

    # ---- a round ---------------------------------------------------------------------

    def round(self, round):
        """Play one round; returns what it did as a dict."""
        factor = self.made.learning_rate_factor(round)
        public = self.public(round)
        if not self.history:
            self.history.append(self.initial_losses())
            self.held = self.own_losses()
        before, accepted = copy.deepcopy(self.models), self.history[-1]
        periods, pulls, arms, models, sent = dict(self.periods), {}, {}, [], {}
        for client, policy in enumerate(self.policies):
            if self.forced is None:
                rng = self.streams("policy", client, round)
                pulls[client] = policy.pull(rng)
            arms[client] = self.forced or str(pulls[client].arm)
            model, sent[client] = self.client(client, round, arms[client], factor)
            models.append(model)
        kd = self.learn(models, self.targets(models, public), public, factor)
        after = self.own_losses()
        local = {client: (self.held[client], after[client]) for client in after}
        rolled_back = self.safeguard(kd, before, periods, sent)
        self.held = self.held if rolled_back else after
        self.pay(pulls, accepted, kd, local)
        return {"kd": kd, "local": local, "arms": arms, "rolled_back": rolled_back}

    @torch.no_grad()
    def initial_losses(self):
        public = self.public(0)
        models = [self.models[name] for name in self.prototypes]
        targets = self.targets(models, public)
        return {name: self.kd(name, targets, public).item() for name in self.models}

    def client(self, client, round, arm, factor):
        """(the client's model as the server forms it, what was sent, dense)."""
        model = self.models[self.prototypes[client]]
        rate = self.made.training.learning_rate * factor
        u, new_statistics = self.gradient(client, round, rate)
        if client in self.residuals:
            u = self.residuals[client] + u
        k = min(self.made.k_of_group(self.groups[client]), u.numel())
        chosen = self.indices(client, round, arm, u, k)
        dense, residual = torch.zeros_like(u), u.clone()
        dense[chosen] = u[chosen]
        residual[chosen] = 0.0
        self.residuals[client] = residual
        formed = with_weights(model, flat(model) - rate * dense)
        for statistic, new in zip(statistics(formed), new_statistics, strict=True):
            statistic.copy_(new)
        return formed, dense

    def pay(self, pulls, before, kd, local):
        rule = self.made.policy.reward
        for client, pull in pulls.items():
            if self.policies[client].learns:
                name = self.prototypes[client]
                losses = before[name], kd[name], *local[client]
                worth = gain(rule.rho, rule.beta, *losses)
                self.policies[client].update(pull, reward(worth, 1.0, rule.clip)[1])

    def learn(self, models, targets, public, factor):
        """Average each prototype, then distil; the losses before the update."""
        distillation, losses = self.made.distillation, {}
        rate = (distillation.learning_rate or self.made.training.learning_rate) * factor
        for name in self.models:
            pairs = zip(models, self.prototypes, strict=True)
            mine = [model for model, prototype in pairs if prototype == name]
            student = with_weights(mine[0], mean_of([flat(model) for model in mine]))
            means = map(mean_of, zip(*map(statistics, mine), strict=True))
            for statistic, mean in zip(statistics(student), means, strict=True):
                statistic.copy_(mean)
            self.models[name] = student.eval()
            optimiser = torch.optim.SGD(student.parameters(), lr=rate)
            for _ in range(distillation.steps):
                loss = descend(optimiser, self.kd(name, targets, public))
                losses.setdefault(name, loss)
        return losses

    def safeguard(self, kd, before, periods, sent):
        rule, usual, self.forced = self.made.safeguard, self.history[-1], None
        if rule.reference.kind == "running-median":
            last = self.history[-rule.reference.window :]
            usual = {name: median(each[name] for each in last) for name in kd}
        rollback = rule.rollback
        if (
            rollback is None
            or self.rollbacks >= rollback.max_consecutive
            or all(kd[name] <= rollback.threshold * usual[name] for name in kd)
        ):
            self.rollbacks = 0
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
