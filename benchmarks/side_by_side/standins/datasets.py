"""Stand-in for the package `datasets`, which `sglang.bench_serving` imports for image sets.

The package itself is not installed, and nothing here uses image sets.
"""

from __future__ import annotations

from typing import NoReturn


def load_dataset(*_: object, **__: object) -> NoReturn:
    """Raise RuntimeError; the random set never calls this."""
    raise RuntimeError(
        "the package `datasets` is not installed here: only random token ids are measured"
    )
