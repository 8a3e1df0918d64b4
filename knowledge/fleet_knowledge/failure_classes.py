"""Lists all failure classes by name. Each row says what the class means, what cures it, what makes
it worse, and whether a retry can help.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet_knowledge.failure_class import Failure
from fleet_knowledge.failure_classes_host import HOST_FAILURES
from fleet_knowledge.failure_classes_launch import (
    ARGUMENT_FAILURES,
    MEMORY_FAILURES,
    MODEL_FAILURES,
    PORT_FAILURES,
)
from fleet_knowledge.failure_classes_runtime import (
    COLLECTIVE_FAILURES,
    SERVING_FAILURES,
)
from fleet_protos.errors import ErrorKind

__all__ = ["FAILURES", "Failure", "kind_of"]

FAILURES: Mapping[str, Failure] = {
    failure.name: failure
    for group in (
        MEMORY_FAILURES,
        PORT_FAILURES,
        ARGUMENT_FAILURES,
        MODEL_FAILURES,
        SERVING_FAILURES,
        COLLECTIVE_FAILURES,
        HOST_FAILURES,
    )
    for failure in group
}
"""Every class by name. A log that explains nothing gets none of them."""


def kind_of(failure_class: str) -> ErrorKind:
    """Return the error kind of a server that ended with this failure class.

    Return SERVER_EXITED for `unknown` and for a name without a row.
    """
    failure = FAILURES.get(failure_class)
    return failure.kind if failure else ErrorKind.SERVER_EXITED
