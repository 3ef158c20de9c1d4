"""Pages that answer what-if questions: a run or scenario with other settings."""
