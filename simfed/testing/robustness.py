"""The contract of merging rules and attacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simfed.ground.method import Size
from simfed.learn.attacks import Attack
from simfed.learn.rules import Rule
from simfed.testing.common import no_global_randomness, read_bits, require


def check_rule(cls: Callable[..., Rule], **options: object) -> None:
    """Check a merging rule, made as `cls(**options)`.

    - it is a frozen dataclass that its options make again, and `least` is at least 1;
    - `merge` answers every field with finite float32 vectors, one for all uploads or
      one for each, from `least` uploads on; it changes no argument, uses no global
      randomness and remembers nothing;
    - uploads that are all equal are answered by what they are, or by something shorter;
    - its work grows with the uploads.

    Whether it withstands attacks is not checked here: see `docs/robustness.md`.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    import torch

    with no_global_randomness():
        rule, again = cls(**options), cls(**options)
        require(rule == again, "a frozen dataclass that its options make again")
        require(rule.least >= 1, f"`least` of at least 1, got {rule.least}")
        rng = np.random.default_rng(3)
        for uploads in (rule.least, rule.least + 1, rule.least + 8):
            lengths = {"update": 50, "buffers": 0, "control": 50}
            fields = {
                name: torch.from_numpy(
                    rng.standard_normal((uploads, n)).astype(np.float32)
                )
                for name, n in lengths.items()
            }
            before = read_bits(fields)
            merged = rule.merge(fields)
            where = f"; {uploads} uploads"
            require(
                read_bits(fields) == before, f"arguments that are left alone{where}"
            )
            require(set(merged) == set(fields), f"an answer to every field{where}")
            for name, rows in merged.items():
                shaped = rows.shape in ((lengths[name],), (uploads, lengths[name]))
                right = shaped and rows.dtype == torch.float32
                require(right, f"float32 vectors of {name}{where}")
                require(
                    bool(torch.isfinite(rows).all()), f"finite numbers of {name}{where}"
                )
            require(
                read_bits(again.merge(fields)) == read_bits(merged),
                f"the same bits twice{where}",
            )
            same = {
                name: field[:1].repeat(uploads, 1) for name, field in fields.items()
            }
            for name, merged_field in rule.merge(same).items():
                rows = torch.atleast_2d(merged_field)
                close = torch.allclose(rows, same[name][:1], atol=1e-5)
                shorter = bool((rows.norm(dim=1) < same[name][0].norm()).all())
                require(
                    close or shorter,
                    f"what all agree on, or less of it, as {name}{where}",
                )
        size = Size("any", 50, 0, 1, 9)
        few, many = (
            rule.work("any", size, uploads) for uploads in (rule.least, rule.least + 9)
        )
        grows = few is None or (many is not None and few.size < many.size)
        require(grows, "work that grows with the uploads")


def check_attack(cls: Callable[..., Attack], **options: object) -> None:
    """Check an attack class, made as `cls(**options)`.

    - it is a frozen dataclass that its options make again;
    - `poison` gives as many samples and labels as it gets, of the same types, labels
      that are classes; `craft` an update; `agree` one for all attackers, or one for
      each; all finite;
    - they change no argument, use no global randomness and give the same bits twice;
    - one of them gives something other than an honest client would.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    import torch

    with no_global_randomness():
        attack, again = cls(**options), cls(**options)
        require(attack == again, "a frozen dataclass that its options make again")
        rng = np.random.default_rng(5)
        samples = torch.from_numpy(rng.integers(0, 200, (20, 1, 6, 6), dtype=np.uint8))
        labels = torch.from_numpy(np.arange(20) % 3)
        updates = torch.from_numpy(rng.standard_normal((4, 30)).astype(np.float32))
        arguments = {"samples": samples, "labels": labels, "updates": updates}
        before = read_bits(arguments)

        def act(attack: Attack) -> dict[str, Any]:
            """Return all that an attack makes of samples and updates, seeded."""
            draws = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
            poisoned = attack.poison(
                samples, labels, draws[0], classes=3, brightest=255.0
            )
            return {
                "samples": poisoned[0],
                "labels": poisoned[1],
                "crafted": attack.craft(updates[0], draws[1]),
                "agreed": attack.agree(updates, 9),
                "alone": attack.agree(updates[:1], 1),
            }

        acts = act(attack)
        require(read_bits(arguments) == before, "arguments that are left alone")
        require(read_bits(act(again)) == read_bits(acts), "the same bits twice")
        alike = (
            acts["samples"].shape == samples.shape
            and acts["samples"].dtype == samples.dtype
        )
        require(
            alike and acts["labels"].shape == labels.shape, "as many samples and labels"
        )
        are_classes = bool(((acts["labels"] >= 0) & (acts["labels"] < 3)).all())
        require(
            are_classes and acts["labels"].dtype == labels.dtype,
            "labels that are classes",
        )
        for name, most in (("crafted", 0), ("agreed", 4), ("alone", 1)):
            shaped = acts[name].shape in ((30,), *([(most, 30)] if most else []))
            sound = shaped and bool(torch.isfinite(acts[name]).all())
            require(sound, f"an update, or one for each attacker, finite; {name}")
        honest = read_bits(
            {
                "samples": samples,
                "labels": labels,
                "crafted": updates[0],
                "agreed": updates,
            }
        )
        differs = read_bits({name: acts[name] for name in list(acts)[:4]}) != honest
        require(differs, "something other than an honest client's")
