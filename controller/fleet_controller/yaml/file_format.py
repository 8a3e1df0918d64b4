"""Describes a kind of file for the translation of errors: its models by path, and what to write
where something is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from fleet_controller.yaml.key_path import KeyPath

FindingText = tuple[str, str, str]  # code, message, hint


def no_text_for_unknown_key(path: KeyPath) -> FindingText | None:
    """Return None: in this kind of file, no unknown key has a text of its own."""
    return None


def model_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a mapping as they are written in the file: by alias, such as `from`, which
    cannot be a field's name.
    """
    return [field.alias or name for name, field in model.model_fields.items()]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of file. `models` maps a path to the model of the mapping there; `*` matches any one
    name or list index.

    `missing` and `empty` say what to write, by the last key; `names` says what a name may be, by
    path; `describe_unknown_key` gives the text for unknown keys that need one of their own;
    `common` lists keys that do not show where they belong.
    """

    noun: str
    models: Mapping[KeyPath, type[BaseModel]]
    missing: Mapping[str, str]
    empty: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[KeyPath, str] = field(default_factory=dict)
    describe_unknown_key: Callable[[KeyPath], FindingText | None] = no_text_for_unknown_key
    common: frozenset[str] = frozenset()

    def model_at(self, path: KeyPath) -> type[BaseModel] | None:
        """Return the model of the mapping at `path`, or None."""
        for pattern, model in self.models.items():
            if len(pattern) == len(path) and all(
                want in ("*", part) for want, part in zip(pattern, path, strict=True)
            ):
                return model
        return None

    def section_of(self, key: str) -> str | None:
        """Return the section where `key` belongs, such as `workloads.NAME`: empty for the top of
        the file, None if it belongs nowhere.
        """
        if key in self.common:
            return None
        homes = (
            ".".join(map(str, pattern)).replace("*", "NAME")
            for pattern, model in self.models.items()
            if key in model_keys(model)
        )
        return next(homes, None)
