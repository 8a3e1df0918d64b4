"""Makes the JSON Schema of a file from its pydantic model."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def json_schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a file, for use in editors. Rules about several
    keys are not part of the schema.
    """
    schema: dict[str, Any] = _untitled(model.model_json_schema(mode="validation"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | schema


def _untitled(part: Any) -> Any:
    """Return a schema without the titles that pydantic makes from names, so that editors show the
    descriptions.
    """
    if isinstance(part, list):
        return [_untitled(entry) for entry in part]
    if isinstance(part, dict):
        return {
            name: _untitled(entry)
            for name, entry in part.items()
            if name != "title" or not isinstance(entry, str)
        }
    return part
