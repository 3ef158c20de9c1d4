"""From a scenario to a run: its parts put together and checked (`assembly`), the run with its
directory, checkpoints and resumption (`running`), what a terminal shows of it, and Ctrl-C; and how
the capacities of a finished run's links stepped (`capacities`)."""
