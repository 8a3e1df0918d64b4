"""Owns a name that `sglang.bench_serving` imports for image sets, which nothing here asks for: the
package itself is not installed.
"""

from __future__ import annotations

from typing import NoReturn


def load_dataset(*_: object, **__: object) -> NoReturn:
    """Never called by the random set. Raises RuntimeError."""
    raise RuntimeError(
        "the package `datasets` is not installed here: only random token ids are measured"
    )
