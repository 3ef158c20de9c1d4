"""Reports: tables, pictures, pages and exports, made from run directories alone."""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "PHASES": "style",
    "accuracy_figure": "curves",
    "build_gantt_data": "gantt_data",
    "build_page": "page",
    "build_timeline": "timeline",
    "gantt_figure": "gantt",
    "list_events": "trace",
    "list_headline_facts": "compare",
    "looks": "style",
    "order_kinds": "gantt_data",
    "save_picture": "pictures",
    "write_page": "page",
    "write_trace": "trace",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
