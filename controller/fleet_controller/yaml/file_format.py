"""Owns what the translation of faults must know of a kind of file: its models by path, its words
for what is missing. Checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from fleet_controller.yaml.key_path import KeyPath

FindingText = tuple[str, str, str]  # code, message, hint


def no_text_for_unknown_key(path: KeyPath) -> FindingText | None:
    """For a kind of file in which no unknown key has a meaning of its own."""
    return None


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a mapping as they are written: `from`, which no field can be called."""
    return [field.alias or name for name, field in model.model_fields.items()]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of file. `models`: which model describes the mapping at a path, `*` stands for any
    one name or place in a list.

    `missing` and `empty`: what to write, by the last key; `names`: what a name may be, by path;
    `unknown`: of keys that say something; `common`: keys that say nothing of where they belong.
    """

    noun: str
    models: Mapping[KeyPath, type[BaseModel]]
    missing: Mapping[str, str]
    empty: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[KeyPath, str] = field(default_factory=dict)
    describe_unknown_key: Callable[[KeyPath], FindingText | None] = no_text_for_unknown_key
    common: frozenset[str] = frozenset()

    def model_at(self, path: KeyPath) -> type[BaseModel] | None:
        """The model of the mapping at `path`."""
        for pattern, model in self.models.items():
            if len(pattern) == len(path) and all(
                want in ("*", part) for want, part in zip(pattern, path, strict=True)
            ):
                return model
        return None

    def section_of(self, key: str) -> str | None:
        """Where `key` belongs, `workloads.NAME`; empty for the top of the file, None when it
        belongs nowhere.
        """
        if key in self.common:
            return None
        homes = (
            ".".join(map(str, pattern)).replace("*", "NAME")
            for pattern, model in self.models.items()
            if key in keys_of(model)
        )
        return next(homes, None)
