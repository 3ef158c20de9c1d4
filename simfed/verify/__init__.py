"""Checks of a run: its tables' invariants, its clock and its learning played again."""
