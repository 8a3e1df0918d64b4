"""Reads NCCL's and RCCL's log lines, one at a time, in bounded memory.

Patterns are searched for, not anchored, because a line may hold several messages.
"""

from __future__ import annotations

import re

from fleet_knowledge.nccl.log import nccl_failures
from fleet_knowledge.nccl.log.algorithm_choices import ChoiceTable
from fleet_knowledge.nccl.log.communicators import CommunicatorTable
from fleet_knowledge.nccl.log.message_split import MessageSplitter, NcclMessage
from fleet_knowledge.nccl.log.nccl_advice import add_advice
from fleet_knowledge.nccl.log.nccl_facts import NcclFacts, NcclWarnLine
from fleet_knowledge.nccl.log.transports import Transports

MAX_LINE_CHARS = 65_536
"""Characters of a line that are read; the rest is dropped."""
_VERSION = re.compile(
    r"\b(?P<library>[NR]CCL) version ?:? ?(?P<version>\d+\.\d+\.\d+[\w.+:-]{0,60})"
    r"|sglang is using nccl==(?P<pip>\d+\.[\w.]{1,20})"
)
_BLOCK = re.compile(r"^(?P<what>HIP|ROCm) version\s*: (?P<version>\d[\w.]*)")
_SETTING = re.compile(
    r"\b(?P<name>[NR]CCL_[A-Z0-9_]{2,80}) set(?: by environment)? to (?P<value>[^\n]{0,500})"
)
_PARSED = re.compile(
    r"Parsed environment variable (?P<name>NCCL_\w+)=(?P<value>\S*) to"
    r"|Comm config \w+ reset to (?P<reset>NCCL_\w+)=(?P<number>\S*)"
)
_INVALID = re.compile(
    r"Invalid value (?P<value>.{0,200}) for (?P<name>[NR]CCL_\w+), using default (?P<used>-?\d+)"
)
_PLUGIN_NAME = re.compile(
    r"(?P<kind>NET|TUNER|PROFILER|ENV)/Plugin ?: Plugin name set by env to (?P<value>\S+)"
)
_PLUGIN_USED = re.compile(
    r"(?P<kind>NET|TUNER|PROFILER|ENV|GIN)/Plugin ?: "
    r"(?:Loaded (?:net|gin) plugin|Using tuner plugin|loaded|Using) (?P<name>[\w.+-][\w .+-]{0,80})"
    r"|[Ss]uccessfully loaded external network plugin (?P<network>\S+)"
)
_CHANNELS = re.compile(
    r"(?P<coll>\d+) coll channels,(?: \d+ collnet channels,)? (?P<nvls>\d+) nvls channels, "
    r"(?P<p2p>\d+) p2p channels"
)
_OLD_CHANNELS = re.compile(r"(?P<coll>\d+) coll channels, (?P<p2p>\d+) p2p channels")
_NETWORK = re.compile(r"Using network (?P<name>[^\n]{1,120})")
_NVLS = re.compile(r"NVLS multicast support is (?P<no>not )?available")
_GDR = re.compile(r"Connected all rings.{0,40}? GDR (?P<on>[01])")
_MAX_SETTINGS = 256
_MAX_WARNINGS = 64
_MAX_VALUES = 8  # of one setting


class NcclReader:
    """Collects facts from the lines that it is given. For a line without an NCCL message, one
    substring search is enough. Never raises, whatever the text.
    """

    def __init__(self) -> None:
        self._splitter = MessageSplitter()
        self._choices = ChoiceTable()
        self._comms = CommunicatorTable()
        self._transports = Transports()
        self._versions: dict[str, None] = {}
        self._settings: dict[str, dict[str, None]] = {}
        self._networks: dict[str, None] = {}
        self._plugins: dict[str, str] = {}
        self._warns: dict[tuple[str, str], NcclWarnLine] = {}
        self._seen: dict[str, bool] = {}
        self._channels: tuple[int, int | None, int] | None = None
        self._library = self._rocm = self._hip = ""
        self._gdr: bool | None = None
        self._nvls: bool | None = None
        self._root_error: tuple[int, str] | None = None
        self._result = ""
        self._follows_error = False
        self._info_lines = self._warn_lines = self._warns_dropped = 0
        self._repeats = 1

    def feed(self, line: str, times: int = 1) -> None:
        """Read one line, with or without its line end. `times` is the number of equal lines that
        the caller counted.
        """
        self._repeats = times
        if "CCL" not in line and "nccl" not in line and not self._continues(line):
            return
        for message in self._splitter.split(line[:MAX_LINE_CHARS].rstrip("\r\n")):
            self._read_message(message)

    def _continues(self, line: str) -> bool:
        """Return whether a line without the word NCCL continues an earlier line of NCCL.

        RCCL's version block and the text after PyTorch's `Last error:` do.
        """
        if self._follows_error:
            return line.strip() != ""
        return self._library == "RCCL" and line.startswith(("HIP version", "ROCm version"))

    def _read_message(self, message: NcclMessage) -> None:
        self._follows_error = message.text.endswith("Last error:")
        if message.level in ("", "WARN", "ABORT"):
            nvls = message.level == "WARN" and "nvls.cc:" in message.file
            self._keep_worst_error(f"nvls.cc: {message.text}" if nvls else message.text)
        if message.level == "WARN":
            self._add_warning(message)
        elif message.level:
            self._info_lines += self._repeats
        for read in (
            self._read_version,
            self._read_choice,
            self._read_communicator,
            self._read_transport,
            self._read_setting,
            self._read_init,
        ):
            if read(message):
                return

    def _keep_worst_error(self, text: str) -> None:
        """Keep the error that is nearest to the root cause, and NCCL's first result."""
        place = nccl_failures.match_error(text)
        if place is not None and (self._root_error is None or place < self._root_error[0]):
            self._root_error = place, text
        self._result = self._result or nccl_failures.read_result(text)

    def _add_warning(self, message: NcclMessage) -> None:
        self._warn_lines += self._repeats
        key = message.file, message.text
        known = self._warns.get(key)
        if known:
            self._warns[key] = NcclWarnLine(
                known.host,
                known.pid,
                known.dev,
                known.file,
                known.msg,
                known.time,
                known.count + self._repeats,
            )
        elif len(self._warns) < _MAX_WARNINGS:
            self._warns[key] = NcclWarnLine(
                message.host,
                message.pid,
                message.dev,
                message.file,
                message.text,
                message.time,
                self._repeats,
            )
        else:
            self._warns_dropped += 1

    def _read_version(self, message: NcclMessage) -> bool:
        if "version" not in message.text and "nccl==" not in message.text:
            return False
        found = _VERSION.search(message.text)
        if found and "DistBackendError" not in message.text and "NCCL error" not in message.text:
            self._library = found["library"] or self._library or "NCCL"
            version = (found["version"] or found["pip"] or "").rstrip(".:,")
            if found["pip"] is None or not any(
                known.startswith(version) for known in self._versions
            ):
                self._add_name(self._versions, version)
            return True
        block = _BLOCK.match(message.text)
        if block:
            self._hip, self._rocm = (
                (block["version"], self._rocm)
                if block["what"] == "HIP"
                else (self._hip, block["version"])
            )
        return block is not None

    def _read_choice(self, message: NcclMessage) -> bool:
        return " Bytes -> " in message.text and self._choices.add_line(
            message.process, message.text, self._repeats
        )

    def _read_communicator(self, message: NcclMessage) -> bool:
        return " - Init " in message.text and self._comms.add_line(message.process, message.text)

    def _read_transport(self, message: NcclMessage) -> bool:
        if "P2P is disabled" in message.text or "Could not enable P2P" in message.text:
            self._seen["p2p_off"] = True
        if "iommu=pt" in message.text:
            self._seen["iommu"] = True
        if "NUMA auto balancing" in message.text:
            self._seen["numa_balancing"] = True
        return self._transports.add_line(message.text)

    def _read_setting(self, message: NcclMessage) -> bool:
        text = message.text
        if " set " in text and (found := _SETTING.search(text)) is not None:
            value = found["value"].strip()
            self._add_setting(found["name"], value[:-1] if _is_sentence(value) else value)
        elif "/Plugin" in text or "network plugin" in text:
            return self._read_plugin(text)
        elif "CCL_" not in text:
            return False
        elif (found := _PARSED.search(text)) is not None:
            self._add_setting(
                found["name"] or found["reset"],
                found["value"] if found["name"] else found["number"].rstrip("."),
            )
        elif (found := _INVALID.search(text)) is not None:
            self._add_setting(found["name"], f"{found['used']} ({found['value']} is invalid)")
        else:
            return False
        return True

    def _read_plugin(self, text: str) -> bool:
        if (found := _PLUGIN_NAME.search(text)) is not None:
            self._add_setting(f"NCCL_{found['kind']}_PLUGIN", found["value"])
        elif (found := _PLUGIN_USED.search(text)) is not None:
            self._plugins[(found["kind"] or "NET").lower()] = (
                found["name"] or found["network"]
            ).strip()
        return found is not None

    def _add_setting(self, name: str, value: str) -> None:
        if name in self._settings or len(self._settings) < _MAX_SETTINGS:
            values = self._settings.setdefault(name, {})
            if len(values) < _MAX_VALUES:
                values.setdefault(value)

    def _read_init(self, message: NcclMessage) -> bool:
        text = message.text
        if " channels" in text and (found := _CHANNELS.search(text)) is not None:
            self._channels = int(found["coll"]), int(found["nvls"]), int(found["p2p"])
        elif " channels" in text and (found := _OLD_CHANNELS.search(text)) is not None:
            self._channels = int(found["coll"]), None, int(found["p2p"])
        elif "Using network" in text and (found := _NETWORK.search(text)) is not None:
            self._add_name(self._networks, found["name"].strip())
        elif "NVLS multicast" in text and (found := _NVLS.search(text)) is not None:
            self._nvls = self._nvls or found["no"] is None
        elif "Connected all rings" in text and (found := _GDR.search(text)) is not None:
            self._gdr = self._gdr or found["on"] == "1"
        else:
            return False
        return True

    @staticmethod
    def _add_name(known: dict[str, None], name: str) -> None:
        if len(known) < 16:
            known.setdefault(name)

    def facts(self) -> NcclFacts:
        """Return what all lines so far show."""
        coll, nvls_channels, p2p = self._channels or (None, None, None)
        shown = NcclFacts(
            library=self._library or ("NCCL" if self._info_lines or self._warn_lines else ""),
            versions=tuple(self._versions),
            rocm=self._rocm,
            hip=self._hip,
            settings={name: tuple(values) for name, values in self._settings.items()},
            tuning=self._choices.rows(self._comms.rank_by_process()),
            tuning_dropped=self._choices.dropped,
            transport=dict(self._transports.kinds),
            paths=dict(self._transports.paths),
            pairs=self._transports.pairs(),
            networks=tuple(self._networks),
            ib_devices=tuple(self._transports.ib_devices),
            interfaces=tuple(self._transports.interfaces),
            bootstrap=self._transports.bootstrap,
            comms=self._comms.communicators(),
            split_comms=self._comms.split_count(),
            gdr=self._gdr if self._gdr is not None else self._transports.gdr,
            coll_channels=coll,
            nvls_channels=nvls_channels,
            p2p_channels=p2p,
            nvls=self._nvls,
            plugins=dict(self._plugins),
            warns=tuple(self._warns.values()),
            warns_dropped=self._warns_dropped,
            failure=nccl_failures.build_failure(*self._root_error, self._result)
            if self._root_error
            else None,
            info_lines=self._info_lines,
            warn_lines=self._warn_lines,
        )
        return add_advice(shown, frozenset(self._seen))


def _is_sentence(value: str) -> bool:
    """Return whether the full stop at the end of `value` ends the sentence.

    NCCL puts a full stop after a value that is a number, but not after a text.
    """
    return value.endswith(".") and value[:-1].lstrip("-").isdigit()
