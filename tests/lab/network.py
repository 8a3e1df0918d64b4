"""Owns a lab's network: a bridge with the controller's address, a wire to each host, and what can
be wrong with them. Starts no host.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import remains
from tests.lab.programs import LabTrouble, call, detach

CHECKOUT = Path(__file__).parents[2]
WIRE_S = 10.0
# whoever sits on the bridge itself: the test session, and the controllers that it starts
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one host is on its lab's network. 198.18.0.0/15 is set aside for benchmarks (RFC 2544),
    so that it hides no real network.
    """

    lab: int
    number: int

    @property
    def link(self) -> str:
        """The outer end of the host's wire, and the name of its network namespace."""
        return f"{remains.prefix(self.lab)}{self.number}"

    @property
    def address(self) -> str:
        """The host's IPv4 address."""
        return f"198.18.{self.lab}.{10 + self.number}"

    @property
    def mac(self) -> str:
        """The host's Ethernet address, the same after each boot."""
        return f"02:bf:00:{self.lab:02x}:01:{self.number:02x}"


@dataclass(slots=True)
class Network:
    """The bridge of lab `number` and the faults that are laid on its wires; every fault outlives a
    host's power-off.
    """

    number: int
    cuts: set[str] = field(default_factory=set)
    losses: dict[str, float] = field(default_factory=dict)
    rates: dict[str, str] = field(default_factory=dict)
    silences: set[tuple[str, str]] = field(default_factory=set)
    delays: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the lab."""
        return remains.ROOT / str(self.number)

    @property
    def bridge(self) -> str:
        """The bridge's name in this network namespace."""
        return f"bl{self.number}"

    @property
    def address(self) -> str:
        """The IPv4 address of the controller's side."""
        return f"198.18.{self.number}.1"

    @property
    def mac(self) -> str:
        """The Ethernet address of the controller's side."""
        return f"02:bf:00:{self.number:02x}:00:00"

    def make(self) -> None:
        """The bridge, with no host on it."""
        lines = [
            f"link add {self.bridge} address {self.mac} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            f"link set {self.bridge} addrgenmode none",
            f"address add {self.address}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        ]
        call(["ip", "-batch", "-"], "\n".join(lines))

    def plug_in(self, places: list[Place]) -> None:
        """Wires and network namespaces of hosts about to start; whatever was laid on a wire before
        lies on it again.
        """
        lines = []
        for place in places:
            lines += [
                f"netns add {place.link}",
                f"link add {place.link} type veth peer name eth0 address {place.mac} netns {place.link}",
                f"link set {place.link} addrgenmode none master {self._switch(place)} {'down' if place.link in self.cuts else 'up'}",
            ]
        call(["ip", "-batch", "-"], "\n".join(lines))
        for place in places:
            inner = [
                "link set lo up",
                f"address add {place.address}/24 dev eth0",
                "link set eth0 addrgenmode none up",
            ]
            call(["ip", "-netns", place.link, "-batch", "-"], "\n".join(inner))
            if place.link in self.rates:
                self.slow(place, self.rates[place.link])

    def pull_wire(self, place: Place) -> None:
        """The wire alone is dead, until `pull_out` and `plug_in`; says nothing of a cut."""
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "down"])

    def pull_out(self, place: Place) -> None:
        """The wire and the namespace of a host that lost its power, and with them every connection
        that its kernel still held.
        """
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "delete", place.link])
        if (remains.NAMESPACES / place.link).exists():
            call(["ip", "netns", "delete", place.link])

    def cut(self, place: Place) -> None:
        """Take the link down: nothing passes, and the host sees it."""
        self.cuts.add(place.link)
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "down"])

    def heal(self, place: Place) -> None:
        """Take the link up again, and end whatever else is wrong with its wire."""
        self.losses.pop(place.link, None)
        self.silences = {pair for pair in self.silences if place.mac not in pair}
        self._write_rules()
        if place.link in self.rates:
            self.slow(place, "")
        if place.link in self.delays:
            self.delay(place, 0.0)
        self.cuts.discard(place.link)
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "up"])

    def lose(self, place: Place, share: float) -> None:
        """Drop this share of the frames, at random, in each direction; 0 ends it, 1 is a cut that
        nobody sees.
        """
        self.losses[place.link] = share
        self._write_rules()

    def silence(self, source: str, target: str) -> None:
        """Drop every packet from one Ethernet address to another; the way back stays open. Address
        resolution still works.
        """
        self.silences.add((source, target))
        self._write_rules()

    def unsilence(self, source: str, target: str) -> None:
        """End `silence`."""
        self.silences.discard((source, target))
        self._write_rules()

    def slow(self, place: Place, rate: str) -> None:
        """Bound a wire to `rate` in each direction, in tc's words (`10mbit`); empty ends it."""
        before = self.rates.pop(place.link, "")
        if rate:
            self.rates[place.link] = rate
        if place.link not in remains.links_of(self.number) or not (rate or before):
            return
        for command in (["tc", "qdisc"], ["tc", "-netns", place.link, "qdisc"]):
            device = "eth0" if "-netns" in command else place.link
            bucket = ["root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
            call(
                [*command, "replace", "dev", device, *bucket]
                if rate
                else [*command, "delete", "dev", device, "root"]
            )

    def delay(self, place: Place, ms: float, jitter_ms: float = 0.0) -> None:
        """Make a wire longer: each frame takes `ms` more in each direction; 0 ends it. About 100
        Mbit/s pass such a wire.
        """
        inner = f"{place.link}m"
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "master", self.bridge])
        if self.delays.pop(place.link, None):
            remains.end(remains.processes_with(f"{place.link}a", f"{self.folder}/"))
            call(["ip", "link", "delete", inner])
        if ms <= 0:
            return
        self.delays[place.link] = (ms, jitter_ms)
        taps = [f"{place.link}a", f"{place.link}b"]
        words = [*taps, str(ms), str(jitter_ms), f"{self.folder}/"]
        detach(
            [sys.executable, "-S", "-m", "tests.lab.wire", *words],
            self.folder / "wire.log",
            {"PYTHONPATH": str(CHECKOUT)},
        )
        deadline = time.monotonic() + WIRE_S
        while not set(taps) <= set(remains.links_of(self.number)):
            if time.monotonic() > deadline:
                raise LabTrouble(
                    f"the slow wire of {place.link} did not start: {(self.folder / 'wire.log').read_text()}"
                )
            time.sleep(0.005)
        lines = [
            f"link add {inner} type bridge stp_state 0 forward_delay 0",
            f"link set {inner} addrgenmode none arp off up",
        ]
        lines += [
            f"link set {taps[0]} addrgenmode none master {self.bridge} up",
            f"link set {taps[1]} addrgenmode none master {inner} up",
        ]
        call(["ip", "-batch", "-"], "\n".join(lines))
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "master", inner])

    def _switch(self, place: Place) -> str:
        return f"{place.link}m" if place.link in self.delays else self.bridge

    def _write_rules(self) -> None:
        lost = [
            (link, round(share * 10000)) for link, share in sorted(self.losses.items()) if share > 0
        ]
        numbered = [
            (link, f"numgen random mod 10000 < {tenthousandths}") for link, tenthousandths in lost
        ]
        silent = [
            f"ether saddr {source} ether daddr {target} ether type != arp drop"
            for source, target in sorted(self.silences)
        ]
        chains = {
            "prerouting": [*silent, *(f"iifname {link} {draw} drop" for link, draw in numbered)],
            "output": silent,
            "postrouting": [f"oifname {link} {draw} drop" for link, draw in numbered],
        }
        opened = {
            hook: f"chain {hook} {{ type filter hook {hook} priority 0; policy accept;"
            for hook in chains
        }
        text = "".join("\n".join([opened[hook], *rules, "}\n"]) for hook, rules in chains.items())
        name = f"bridge {remains.table(self.number)}"
        call(["nft", "-f", "-"], f"table {name}\ndelete table {name}\ntable {name} {{\n{text}}}\n")
