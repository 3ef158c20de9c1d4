"""`laws_parts.py` is a plug-in that drawn worlds name: nobody but simfed runs it."""

collect_ignore = ["laws_parts.py"]
