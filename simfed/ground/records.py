"""Records by place, for those of which each participation makes a dozen.

`Span(track, …)` is three calls inside Python, and more by keyword: 4,000 processor
instructions for seven fields by place, 20,000 for the 26 of a participation by keyword.
`make(Span, (track, …))` is one call, 2,400 and 4,000. It checks nothing, so all fields
stand there, in their order.

>>> from typing import NamedTuple
>>> class Pair(NamedTuple):
...     left: int
...     right: int
>>> make(Pair, (1, 2))
Pair(left=1, right=2)
"""

make = tuple.__new__
"""`(type of named tuple, all of its fields)` → the record."""
