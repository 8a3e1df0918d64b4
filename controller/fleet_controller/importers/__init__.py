"""Makes a job file from a launch command that somebody pasted (pure)."""
