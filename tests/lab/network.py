"""Owns a lab's network: a bridge with the controller's address, a wire to each host, and what can be wrong with them. Starts no host."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.lab import remains
from tests.lab.programs import call

CONTROLLER = "controller"  # whoever sits on the bridge itself: the test session, and the controllers that it starts


@dataclass(frozen=True, slots=True)
class Place:
    """Where one host is on its lab's network. 198.18.0.0/15 is set aside for benchmarks (RFC 2544), so that it hides no real network."""

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
    """The bridge of lab `number` and the faults that are laid on its wires; every fault outlives a host's power-off."""

    number: int
    cuts: set[str] = field(default_factory=set)
    losses: dict[str, float] = field(default_factory=dict)
    rates: dict[str, str] = field(default_factory=dict)
    silences: set[tuple[str, str]] = field(default_factory=set)

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
        """Wires and network namespaces of hosts about to start; whatever was laid on a wire before lies on it again."""
        lines = []
        for place in places:
            lines += [
                f"netns add {place.link}",
                f"link add {place.link} type veth peer name eth0 address {place.mac} netns {place.link}",
                f"link set {place.link} addrgenmode none master {self.bridge} {'down' if place.link in self.cuts else 'up'}",
            ]
        call(["ip", "-batch", "-"], "\n".join(lines))
        for place in places:
            inner = ["link set lo up", f"address add {place.address}/24 dev eth0", "link set eth0 addrgenmode none up"]
            call(["ip", "-netns", place.link, "-batch", "-"], "\n".join(inner))
            if place.link in self.rates:
                self.slow(place, self.rates[place.link])

    def pull_wire(self, place: Place) -> None:
        """The wire alone is dead, until `pull_out` and `plug_in`; says nothing of a cut."""
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "down"])

    def pull_out(self, place: Place) -> None:
        """The wire and the namespace of a host that lost its power, and with them every connection that its kernel still held."""
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
        """Take the link up again."""
        self.cuts.discard(place.link)
        if place.link in remains.links_of(self.number):
            call(["ip", "link", "set", place.link, "up"])

    def lose(self, place: Place, share: float) -> None:
        """Drop this share of the frames, at random, in each direction; 0 ends it, 1 is a cut that nobody sees."""
        self.losses[place.link] = share
        self._write_rules()

    def silence(self, source: str, target: str) -> None:
        """Drop every packet from one Ethernet address to another; the way back stays open. Address resolution still works."""
        self.silences.add((source, target))
        self._write_rules()

    def unsilence(self, source: str, target: str) -> None:
        """End `silence`."""
        self.silences.discard((source, target))
        self._write_rules()

    def slow(self, place: Place, rate: str) -> None:
        """Bound a wire to `rate` in each direction, in tc's words (`10mbit`); empty ends it."""
        self.rates[place.link] = rate
        if not rate:
            del self.rates[place.link]
        for command in (["tc", "qdisc"], ["tc", "-netns", place.link, "qdisc"]):
            device = "eth0" if "-netns" in command else place.link
            bucket = ["root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
            call([*command, "replace", "dev", device, *bucket] if rate else [*command, "delete", "dev", device, "root"])

    def _write_rules(self) -> None:
        lost = [(link, round(share * 10000)) for link, share in sorted(self.losses.items()) if share > 0]
        numbered = [(link, f"numgen random mod 10000 < {tenthousandths}") for link, tenthousandths in lost]
        silent = [f"ether saddr {source} ether daddr {target} ether type != arp drop" for source, target in sorted(self.silences)]
        chains = {
            "prerouting": [*silent, *(f"iifname {link} {draw} drop" for link, draw in numbered)],
            "output": silent,
            "postrouting": [f"oifname {link} {draw} drop" for link, draw in numbered],
        }
        opened = {hook: f"chain {hook} {{ type filter hook {hook} priority 0; policy accept;" for hook in chains}
        text = "".join("\n".join([opened[hook], *rules, "}\n"]) for hook, rules in chains.items())
        name = f"bridge {remains.table(self.number)}"
        call(["nft", "-f", "-"], f"table {name}\ndelete table {name}\ntable {name} {{\n{text}}}\n")
