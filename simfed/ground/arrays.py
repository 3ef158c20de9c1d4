"""NumPy arrays by what they hold, for annotations."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Integers: TypeAlias = NDArray[np.signedinteger]
"""Signed, of any width."""
