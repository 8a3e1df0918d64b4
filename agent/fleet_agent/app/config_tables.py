"""Reads the tables of agent.toml. Checks keys and types, and records each mistake with its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TABLES: Mapping[str, Mapping[str, type]] = {
    "": {
        "host": str,
        "listen": str,
        "state": str,
        "gpus": int,
        "simulated_gpus": int,
        "metrics": str,
        "load_only": bool,
    },
    "tls": {"authorities": str, "certificate": str, "key": str, "revoked": str},
    "allow": {
        "python": list,
        "images": list,
        "models": list,
        "mounts": list,
        "env": list,
        "args": list,
    },
    "server": {"python": str, "image": str},
}

_FREE_TABLES = ("labels", "server.env")  # tables whose keys the user chooses

_TYPE_NAMES = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
    list: "a list of texts",
}


@dataclass(frozen=True, slots=True)
class ConfigChecker:
    """Checks one configuration file, and collects its mistakes in `faults` as (line, message)."""

    file: str
    text: str
    faults: list[tuple[int, str]]

    def fault(self, key: str, problem: str, fix: str) -> None:
        """Record a mistake at `key`, a dotted key such as `server.python`. `fix` says what to write
        instead.
        """
        line = _find_line(self.text, key)
        self.faults.append(
            (line, f"{self.file}{f':{line}' if line else ''}: {key}: {problem}: {fix}")
        )

    def read_tables(self, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the keys and values of each table. Keys that are unknown or have a value of the
        wrong type are left out and recorded as faults.
        """
        found: dict[str, dict[str, Any]] = {name: {} for name in (*_TABLES, *_FREE_TABLES)}
        self._read_table("", document, found)
        return found

    def _read_table(
        self, table: str, content: Mapping[str, Any], found: dict[str, dict[str, Any]]
    ) -> None:
        for key, value in content.items():
            dotted = f"{table}.{key}" if table else key
            if dotted in found:
                if isinstance(value, Mapping):
                    self._read_table(dotted, value, found)
                else:
                    self.fault(
                        dotted, "must be a table", f"write a line [{dotted}] and its keys below"
                    )
            elif table in _FREE_TABLES:
                self._read_free_entry(dotted, key, value, found[table])
            elif key not in _TABLES[table]:
                self.fault(
                    dotted, "unknown key", _suggestion(key, [*_TABLES[table], *_subtables(table)])
                )
            elif not _has_type(value, _TABLES[table][key]):
                seen = _TYPE_NAMES.get(type(value), f"a {type(value).__name__}")
                wanted = _TYPE_NAMES[_TABLES[table][key]]
                self.fault(dotted, f"the value must be {wanted}", f"it is {seen}")
            else:
                found[table][key] = value

    def _read_free_entry(self, dotted: str, key: str, value: Any, into: dict[str, Any]) -> None:
        if isinstance(value, str):
            into[key] = value
        else:
            self.fault(dotted, "the value must be text in quotes", f'write {key} = "{value}"')


def _has_type(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return type(value) is kind


def _subtables(table: str) -> list[str]:
    names = [
        name for name in (*_TABLES, *_FREE_TABLES) if name and name.rpartition(".")[0] == table
    ]
    return [name.rpartition(".")[2] for name in names]


def _suggestion(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    names = ", ".join(known)
    return f"did you mean {near[0]}?" if near else f"the known keys are {names}"


def _find_line(text: str, key: str) -> int:
    """Return the number of the line that sets a dotted key. Return 0 if no line is recognised: the
    text is searched by patterns, because tomllib gives no line numbers.
    """
    *tables, name = key.split(".")
    inside = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            inside = re.sub(r"[\s\"']", "", header[1])
            if inside == key:
                return number
        elif inside == ".".join(tables) and re.match(
            rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line
        ):
            return number
    return 0
