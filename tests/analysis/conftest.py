"""Scripts of `analysis/` are imported as they stand."""

import sys
from pathlib import Path

_ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
_OTHERS = _ANALYSIS / "others"
sys.path[:0] = map(str, (_ANALYSIS, _OTHERS, *_OTHERS.glob("*/")))
