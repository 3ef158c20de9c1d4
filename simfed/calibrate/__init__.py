"""Device profiles made: this machine measured, laws fitted to a table or to a run, and what a
fit is worth. Profiles are read and charged in `simfed.device`."""
