"""Pages that answer what-if questions: a run or scenario with other settings.

A question goes this way: `explore.js` sends a setting to `serve.py`; `player.py` plays
the newest question of each page; `world.py` applies the setting, plays the clock over
what journals know (`known.py`, `foreseen.py`) and sends sums (`glance.py`) and a Gantt.
Where no journal knows what would have been learned, `real.py` runs it. `settings.py`
has the sliders, `watch.py` serves the page of a run under way. Begin reading at
`world.ClockRun`.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "ExploredWorld": "world",
    "play": "world",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
