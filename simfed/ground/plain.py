"""Plain values: whatever JSON and YAML carry, and so states, checkpoints and files."""

from __future__ import annotations

from typing import Any, TypeAlias

Plain: TypeAlias = Any
"""None, a bool, an int, a float, a str, or a list or mapping of these. Whoever wrote
the value knows its shape; checkers of user input take `object` instead."""
