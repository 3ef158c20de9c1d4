"""FedJAX: its federated averaging with the backend that compiles a client's step.

    python rival_fedjax.py TASK.npz

Images are kept as (n, 28, 28, 1) and pooled as the maximum of a reshaped array: XLA's windows and
their gradients are slower on a processor. A client's last batch is filled up with samples drawn
again, as FedJAX does: 608 samples instead of 600 where batches of 32 are made of 600.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from rival_task import Rounds, Task, read_task

Params = dict[str, Any]


def logistic(params: Params, x: Any) -> Any:
    """Logits of one linear layer."""
    return x.reshape(len(x), -1) @ params["linear.weight"] + params["linear.bias"]


def lenet5(params: Params, x: Any) -> Any:
    """Logits of two convolutions and three linear layers."""
    x = pooled(convolved(params, "conv1", x, "SAME"))
    x = pooled(convolved(params, "conv2", x, "VALID"))
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(x @ params[f"{name}.weight"] + params[f"{name}.bias"])
    return x @ params["fc3.weight"] + params["fc3.bias"]


def convolved(params: Params, name: str, x: Any, padding: str) -> Any:
    """A convolution with its bias."""
    kernel = params[f"{name}.weight"]
    numbers = ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=numbers)
    return made + params[f"{name}.bias"]


def pooled(x: Any) -> Any:
    """ReLU, then the maximum of 2×2 windows."""
    n, height, width, channels = x.shape
    x = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    return jax.nn.relu(x.max(axis=(2, 4)))


def params_of(task: Task) -> Params:
    """The first weights, with PyTorch's axes in JAX's order."""
    params: Params = {}
    for name, weight in task.weights.items():
        if weight.ndim == 4:
            weight = weight.transpose(2, 3, 1, 0)
        elif name == "fc1.weight":  # what comes in is (height, width, channels) here
            weight = weight.reshape(len(weight), 16, 5, 5).transpose(2, 3, 1, 0)
            weight = weight.reshape(400, -1)
        elif weight.ndim == 2:
            weight = weight.T
        params[name] = jnp.asarray(weight)
    return params


def main() -> None:
    task = read_task(sys.argv[1])
    logits: Callable[[Params, Any], Any] = lenet5 if task.model == "lenet5" else logistic

    def losses(params: Params, batch: dict[str, Any], rng: Any) -> Any:
        of_classes = jax.nn.log_softmax(logits(params, batch["x"]))
        return -jnp.take_along_axis(of_classes, batch["y"][:, None], axis=1)[:, 0]

    images = task.images.reshape(-1, 28, 28, 1)
    data = fedjax.InMemoryFederatedData(
        {
            client: {"x": images[own], "y": task.labels[own].astype(np.int32)}
            for client, own in enumerate(task.owned)
        }
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, task.per_round, seed=0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.grad(losses),
        client_optimizer=fedjax.optimizers.sgd(task.rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=task.batch),
    )
    state, rounds = algorithm.init(params_of(task)), Rounds(task.rounds)
    for round in range(1, task.rounds + 1):
        sampler.set_round_num(round)
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        rounds.after(round)
    guesses = jax.jit(lambda params, x: logits(params, x).argmax(1))
    tests = np.split(
        task.test_images.reshape(-1, 28, 28, 1), range(500, len(task.test_labels), 500)
    )
    predictions = np.concatenate([guesses(state.params, some) for some in tests])
    rounds.report(float((predictions == task.test_labels).mean()), "fedjax", "jax")


if __name__ == "__main__":
    main()
