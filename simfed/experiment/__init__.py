"""Runs of scenarios: parts, checks, the run with its directory, and Ctrl-C.

`assembly` puts parts together, `checks` checks them, `running` plays the run with
checkpoints and resumption, `progress` is what a terminal shows of it, and `capacities`
works out how the capacities of a finished run's links stepped.
"""
