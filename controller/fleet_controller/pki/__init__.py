"""The fleet's own authority: who may speak to whom, for how long, and who no more."""
