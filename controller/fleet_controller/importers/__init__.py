"""Makes a job file from a pasted launch command."""
