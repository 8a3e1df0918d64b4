"""Parses `lscpu` in any language, `lscpu -J` and /proc/cpuinfo. A fact that cannot be read is None.

lscpu translates labels and some values by the locale (util-linux 2.2x to 2.41). Numbers are found
by known labels. If the labels are unknown, they are found by position: threads per core, cores per
socket and sockets follow each other, and their product is the number of CPUs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleet_knowledge.host.topology_matrix import strip_decoration

_LINE = re.compile(r"^\s*([^:\uff1a]+?)\s*[:\uff1a]\s*(.*?)\s*$")
_INTEGER = re.compile(r"\d+")
_CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_BRAND = re.compile(
    r"EPYC|Xeon|Ryzen|Opteron|Threadripper|Intel\(R\)|Neoverse|Grace|Cortex|Ampere|Kunpeng|Altra|POWER\d|Core\(TM\)|Hygon"
)
# Labels of util-linux 2.38 as `lscpu` prints them in its languages: English first, then ca to
# zh_TW.
_LABELS: Mapping[str, str] = {
    "model": (
        "model name|název modelu|modelnavn|modellname|nombre del modelo|mallinimi"
        "|nom de modèle|ime modela|モデル名|modelnaam|nazwa modelu|nome do modelo|имя модели"
        "|modellnamn|modem ismi|назва моделі|tên mô hình|型号名称|型號名稱|모델명"
        "|nome modello"
    ),
    "threads": (
        "thread(s) per core|vláken na jádro|tråde per kerne|thread(s) pro kern"
        "|hilo(s) de procesamiento por núcleo|core bakoitzeko hari kopurua|thread(s) par cœur"
        "|dretva po jezgri|thread(s) setiap inti|コアあたりのスレッド数|draden per kern"
        "|wątków na rdzeń|tópicos por núcleo|thread(s) per núcleo|потоков на ядро"
        "|tråd(ar) per kärna|çekirdek başına iş parçacığı|số tuyến mỗi lõi|每个核的线程数"  # noqa: RUF001 - Turkish
        "|每核心執行緒數"
    ),
    "cores": (
        "core(s) per socket|core(s) per cluster|jader na patici|kerner per sokkel"
        "|kern(e) pro sockel|núcleo(s) por «socket»|socket bakoitzeko core kopurua"
        "|cœur(s) par socket|jezgra po podnožju|inti setiap soket|ソケットあたりのコア数"
        "|kernen per voet|rdzeni na gniazdo|núcleos por socket|núcleo(s) por soquete"
        "|ядер на сокет|kärn(or) per uttag|soket başına çekirdek|số lõi mỗi đế cắm"  # noqa: RUF001 - Turkish
        "|每个座的核数|每通訊端核心數"
    ),
    "sockets": (
        "socket(s)|patic|sokler|sockel|«socket(s)»|cpu podnožja|ソケット数|cpu-voeten|gniazd"
        "|sockets|soquete(s)|сокетов|uttag|soket(ler)|сокети|số đế cắm|座"
    ),
    "cpus": (
        "cpu(s)|počet cpu|cpu'er|processeur(s)|cpu(-a)|cpu|cpu's|cpu(er)|i̇şlemciler|процесори"
        "|prozessor(en)|وحدات المعالجة"
    ),
}
_WORDS = {label: name for name, labels in _LABELS.items() for label in labels.split("|")}


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors of a host.

    `numa_nodes_with_cpus` leaves out nodes that only have memory (HBM of Grace Hopper, CXL).
    """

    cpu_model: str | None = None
    sockets: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    cpus: int | None = None
    numa_nodes: int | None = None
    numa_nodes_with_cpus: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `fleetctl diagnose` prints."""
        return asdict(self)

    @property
    def has_facts(self) -> bool:
        """Return whether any fact is known."""
        return any(value is not None for value in asdict(self).values())


def read_lscpu(text: str) -> Processors:
    """Read any of the three formats. Never raises."""
    clean = strip_decoration(text)
    if re.search(r"^processor\s*:\s*\d+", clean, re.M):
        return _from_cpuinfo(clean)
    return _from_lines(_pairs_of_json(clean) or _pairs(clean))


Pairs = list[tuple[str, str]]


def _pairs(text: str) -> Pairs:
    return [(found[1], found[2]) for line in text.split("\n") if (found := _LINE.match(line))]


def _pairs_of_json(text: str) -> Pairs:
    try:
        document = json.loads(text)
    except ValueError:
        return []
    entries = document.get("lscpu", []) if isinstance(document, dict) else []
    return list(_flat(entries)) if isinstance(entries, list) else []


def _flat(entries: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for entry in entries:
        if isinstance(entry, dict):
            yield str(entry.get("field") or "").rstrip(":"), str(entry.get("data") or "")
            children = entry.get("children")
            yield from _flat(children if isinstance(children, list) else ())


def _from_lines(pairs: Pairs) -> Processors:
    cpus, threads, cores, sockets = (
        _number(pairs, name) for name in ("cpus", "threads", "cores", "sockets")
    )
    if None in (threads, cores, sockets):
        threads, cores, sockets = _counts_by_position(pairs, cpus) or (threads, cores, sockets)
    cpus = cpus or _product(pairs, threads, cores, sockets)
    nodes = _nodes(pairs)
    node_count = next((int(value) for label, value in pairs if _is_node_count(label, value)), None)
    with_cpus = sum(bool(cpus) for cpus in nodes.values()) if nodes else None
    return Processors(
        _model(pairs),
        sockets,
        cores,
        threads,
        cpus,
        node_count if node_count is not None else len(nodes) or None,
        with_cpus,
    )


def _number(pairs: Pairs, name: str) -> int | None:
    return next(
        (
            int(value)
            for label, value in pairs
            if _WORDS.get(label.lower()) == name and _INTEGER.fullmatch(value)
        ),
        None,
    )


def _counts_by_position(pairs: Pairs, cpus: int | None) -> tuple[int, int, int] | None:
    """Find threads, cores and sockets: three numbers in a row whose product is the CPU count."""
    figures = [int(value) if _INTEGER.fullmatch(value) else None for _, value in pairs]
    first = next((figure for figure in figures if figure), None)
    total = cpus or first
    for place in range(len(figures) - 2):
        threads, cores, sockets = figures[place : place + 3]
        if threads and cores and sockets and threads * cores * sockets == total and threads <= 8:
            return threads, cores, sockets
    return None


def _product(pairs: Pairs, *sizes: int | None) -> int | None:
    """Return the product of the sizes if some value equals it, whatever its label; else None."""
    total = math.prod(size or 0 for size in sizes)
    return total if total and str(total) in (value for _, value in pairs) else None


def _model(pairs: Pairs) -> str | None:
    named = next(
        (
            value
            for label, value in pairs
            if _WORDS.get(label.lower()) == "model" and value not in ("", "-")
        ),
        None,
    )
    return named or next(
        (value for _, value in pairs if _BRAND.search(value) and not _INTEGER.fullmatch(value)),
        None,
    )


def _nodes(pairs: Pairs) -> Mapping[int, str]:
    """Return the CPU list of each NUMA node; empty for a node without CPUs."""
    nodes: dict[int, str] = {}
    for label, value in pairs:
        number = _INTEGER.search(label)
        if "NUMA" in label.upper() and number and (not value or _CPU_LIST.fullmatch(value)):
            nodes[int(number[0])] = value
    return nodes


def _is_node_count(label: str, value: str) -> bool:
    return (
        "NUMA" in label.upper() and not _INTEGER.search(label) and bool(_INTEGER.fullmatch(value))
    )


def _from_cpuinfo(text: str) -> Processors:
    pairs = _pairs(text)
    values = {
        label: [value for name, value in pairs if name == label]
        for label in ("processor", "model name", "physical id")
    }
    cpus, sockets = len(values["processor"]), len(set(values["physical id"])) or None
    cores = next(
        (int(value) for name, value in pairs if name == "cpu cores" and value.isdecimal()), None
    )
    siblings = next(
        (int(value) for name, value in pairs if name == "siblings" and value.isdecimal()), None
    )
    threads = siblings // cores if siblings and cores else None
    return Processors(next(iter(values["model name"]), None), sockets, cores, threads, cpus)
