"""What if: a run or a scenario, played with other settings while somebody looks."""
