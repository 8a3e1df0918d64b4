"""Owns the entry point `python -m sglang.launch_server` of a test image: prints its environment,
then serves the simulated engine.
"""

from __future__ import annotations

import os
import sys

from fleet_simulator.server import main

if __name__ == "__main__":
    for name, value in sorted(os.environ.items()):
        sys.stdout.write(f"environment: {name}={value}\n")
    sys.stdout.flush()
    sys.exit(main())
