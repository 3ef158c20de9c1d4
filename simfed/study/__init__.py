"""Studies: grids of scenarios × seeds, their run store, their executors and their comparison."""
