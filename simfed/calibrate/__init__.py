"""Makes device profiles: measures, fits laws to a table or a run, checks a fit.

Profiles are read and charged in `simfed.device`.
"""
