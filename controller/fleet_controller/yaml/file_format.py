"""Describes a kind of file, so that validation errors can be translated into findings about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from fleet_controller.yaml.key_path import KeyPath

FindingText = tuple[str, str, str]  # code, message, hint


def no_text_for_unknown_key(path: KeyPath) -> FindingText | None:
    """Return None, because this kind of file has no special text for any unknown key."""
    return None


def model_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a mapping as they are written in the file. A key such as `from` cannot be
    the name of a field, so it is the alias of a field.
    """
    return [field.alias or name for name, field in model.model_fields.items()]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of file.

    - `noun`: what messages call the file.
    - `models`: the model of the mapping at each path; `*` matches any name or list index.
    - `missing`, `empty`: what to write for a missing or empty key, by path or last key.
    - `names`: what a name may be, by path.
    - `describe_unknown_key`: returns a special text for an unknown key, or None.
    - `common`: keys that occur in many sections, so that a key alone does not show where it
      belongs.
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
        """Return the section to which `key` belongs, such as `workloads.NAME`. Return an empty text
        for the top of the file, and None for a key that belongs nowhere.
        """
        if key in self.common:
            return None
        homes = (
            ".".join(map(str, pattern)).replace("*", "NAME")
            for pattern, model in self.models.items()
            if key in model_keys(model)
        )
        return next(homes, None)
