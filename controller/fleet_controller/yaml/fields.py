"""Defines the field types and the base model that job file and fleet file share: durations, ratios,
names, labels and variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from fleet_controller.yaml.quantities import (
    DURATION_PATTERN,
    RATIO_PATTERN,
    read_duration,
    read_ratio,
)

NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
JOB_NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"


def _parsed_by(code: str, read: Callable[[object], float], hint: str) -> BeforeValidator:
    def validate(written: object) -> float:
        try:
            return read(written)
        except ValueError as error:
            raise PydanticCustomError(
                code, "{problem}", {"problem": str(error), "hint": hint}
            ) from None

    return BeforeValidator(validate)


_DURATION = _parsed_by(
    "bad_duration",
    read_duration,
    "write a duration like `250ms`, `60s`, `30m` or `1h30m`; a plain number is seconds",
)
_RATIO = _parsed_by("bad_ratio", read_ratio, "write a percentage like `2%`, or a ratio like `0.02`")
_DURATION_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"type": "number", "minimum": 0}]}
)
_RATIO_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": RATIO_PATTERN}, {"type": "number"}]}
)

Duration = Annotated[float, _DURATION, _DURATION_SCHEMA]  # seconds, may be 0
Deadline = Annotated[float, Field(gt=0), _DURATION, _DURATION_SCHEMA]  # seconds, above 0
Precision = Annotated[float, Field(gt=0, lt=1), _RATIO, _RATIO_SCHEMA]
Within = Annotated[float, Field(ge=0.001, le=0.5), _RATIO, _RATIO_SCHEMA]
Share = Annotated[float, Field(gt=0, le=1), _RATIO, _RATIO_SCHEMA]
Confidence = Annotated[float, Field(ge=0.5, lt=1), _RATIO, _RATIO_SCHEMA]
Noise = Annotated[float, Field(ge=0, lt=1), _RATIO, _RATIO_SCHEMA]
Drift = Annotated[float, Field(gt=-1, lt=1), _RATIO, _RATIO_SCHEMA]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1)]
Gpus = Annotated[int, Field(ge=0, le=1024)]


def none_as_empty(shape: Any) -> BeforeValidator:
    """Return a validator that reads an empty key, such as `env:`, as an empty mapping."""
    return BeforeValidator(
        lambda written: {} if written is None else written, json_schema_input_type=shape | None
    )


_VARIABLE_SCHEMA = WithJsonSchema({"type": ["string", "number", "boolean", "null"]})
_Texts = dict[str, Annotated[str, _VARIABLE_SCHEMA]]
_TextsOrNull = dict[str, Annotated[str | None, _VARIABLE_SCHEMA]]
Variables = Annotated[_TextsOrNull, none_as_empty(_TextsOrNull)]
Labels = Annotated[_Texts, none_as_empty(_Texts)]


class Section(BaseModel):
    """The base of each mapping in a job or fleet file. Unknown keys are errors, and values keep the
    type in which they were written.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
