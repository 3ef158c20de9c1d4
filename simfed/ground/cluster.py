"""The connection to the scheduler of an existing Dask cluster (`distributed`)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.registry import import_part


class SchedulerConnection:
    """A client of a scheduler, whose errors are one sentence each.

    An address `tls://…` takes its certificates from Dask's own configuration.

    Attributes: `client`, a `distributed.Client`; `distributed`, the package; `gone`,
    the errors of a scheduler or worker that is no longer there.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        """Connect.

        Raises: `InputError` where the package or the scheduler is missing.
        """
        try:
            self.distributed: Any = importlib.import_module("distributed")
        except ModuleNotFoundError:
            problem = "the package distributed, for --dask, is missing"
            raise InputError(
                problem=problem, hint="pip install 'simfed[dask]'"
            ) from None
        distributed, self._address = self.distributed, address
        self.gone = (OSError, distributed.TimeoutError, distributed.CancelledError)
        try:
            # a client of an address that cannot be is half made: it takes 20 s and a
            # traceback to go
            distributed.comm.resolve_address(address)
            with _without_logs():
                self.client: Any = distributed.Client(
                    address, timeout=timeout_s, set_as_default=False
                )
        except (OSError, ValueError, TypeError) as error:
            allowed = (
                f"the address of a Dask scheduler that answers within {timeout_s:g} s"
            )
            hint = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(allowed, where="--dask", got=address, hint=hint) from None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise `RunFailed` in place of errors that say that the scheduler is gone."""
        text = f"the Dask cluster at {self._address} no longer answers"
        if self.client.status in ("closed", "closing"):
            raise RunFailed(text)
        try:
            yield
        except self.gone as error:
            raise RunFailed(f"{text} ({error})") from error

    def threads(self) -> dict[str, int]:
        """Return the threads of each worker, by its address.

        Raises: `RunFailed` where the cluster is gone.
        """
        with self.answering():
            return dict(self.client.nthreads())

    def close(self) -> None:
        """Leave the cluster, which goes on without us; safe to call twice."""
        with _without_logs():
            self.client.close(timeout=2)


def call_part(name: str, *arguments: Any) -> Any:
    """Return what the function at `"module:attribute"` gives, called on a worker.

    A scheduler reads which function is called: it need not import more than this file.
    """
    return import_part(name)(*arguments)


@contextmanager
def _without_logs() -> Iterator[None]:
    """Let libraries log nothing in the block; the error that comes says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
