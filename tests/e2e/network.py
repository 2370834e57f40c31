"""Hosts of a test's own: a network namespace each, on one switch, and cables that can be cut in one direction.

A namespace lives as long as the process that holds it, and that one ends with the test (its standard input closes), so
nothing is left behind, whatever ends the tests. A cut is silent, as in life: no packet arrives, nobody is told. It is
made by the sender's neighbour entry, which is permanent and names a machine that is not there; what was sent meanwhile
is sent again by TCP once the cut has healed. Needs `ip`, `ss` and `unshare`, and root or user namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

_NOBODY = "02:00:00:00:ff:ff"
_SWITCH = "(switch)"


class Network:
    """Hosts by name. `close` ends the namespaces (what runs in them is its starter's to end, before)."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        """The host's internet address."""
        return f"10.77.0.{self.names.index(name) + 1}"

    def enter(self, name: str) -> list[str]:
        """What a command line begins with to run on the host, under the process id that it is started with."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self._holders[name].pid}", "--net", *user, "--"]

    def cut(self, senders: str | Iterable[str], receivers: str | Iterable[str]) -> None:
        """From now on nothing of what `senders` send arrives at `receivers`."""
        self._wire(senders, receivers, cut=True)

    def cut_both(self, here: str | Iterable[str], there: str | Iterable[str]) -> None:
        """Nothing passes between `here` and `there` any more."""
        self.cut(here, there)
        self.cut(there, here)

    def isolate(self, name: str) -> None:
        """Nothing passes between the host and any other."""
        self.cut_both(name, [other for other in self.names if other != name])

    def heal(self) -> None:
        """Everything passes again."""
        self._wire(self.names, self.names, cut=False)

    def reset(self, name: str, peer: str) -> None:
        """The host's connections with `peer` end with an error here; whether the peer hears of it is the cables'."""
        command = [*self.enter(name), "ss", "--kill", "dst", self.address(peer)]
        subprocess.run(command, check=True, capture_output=True)

    def close(self) -> None:
        """Ends the namespaces. Idempotent."""
        for holder in self._holders.values():
            holder.communicate()
        self._holders.clear()

    def _wire(self, senders: str | Iterable[str], receivers: str | Iterable[str], *, cut: bool) -> None:
        for sender in _names(senders):
            others = [name for name in _names(receivers) if name != sender]
            lines = [f"neigh replace {self._way(name, cut=cut)}" for name in others]
            self._ip(sender, lines)

    def _way(self, name: str, *, cut: bool) -> str:
        card = _NOBODY if cut else self._card(name)
        return f"{self.address(name)} lladdr {card} dev eth0 nud permanent"

    def _card(self, name: str) -> str:
        return f"02:00:00:00:00:{self.names.index(name) + 1:02x}"

    def _build(self) -> None:
        for name in (_SWITCH, *self.names):
            self._holders[name] = self._hold()
        self._ip(_SWITCH, ["link add switch type bridge", "link set switch up"])
        for name in self.names:
            port, pid = f"port{self.names.index(name)}", self._holders[name].pid
            here = f"link add {port} type veth peer name eth0 address {self._card(name)} netns {pid}"
            self._ip(_SWITCH, [here, f"link set {port} master switch up"])
            there = ["link set lo up", f"addr add {self.address(name)}/24 dev eth0", "link set eth0 up"]
            self._ip(name, there)
        self.heal()

    def _hold(self) -> subprocess.Popen[bytes]:
        """A process in a namespace of its own, which ends when its standard input does."""
        inside = self.enter(_SWITCH) if _SWITCH in self._holders else []
        root = os.geteuid() == 0 or inside
        command = [*inside, "unshare", "--net", *([] if root else ["--user", "--map-root-user"])]
        holder = subprocess.Popen(
            [*command, "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise OSError(f"no network namespace: {' '.join(command)} ended with {holder.wait()}")
        return holder

    def _ip(self, name: str, lines: list[str]) -> None:
        command = [*self.enter(name), "ip", "-batch", "-"]
        done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=False)
        if done.returncode:
            raise OSError(f"{name}: ip refused {lines}: {done.stderr.decode()}")


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@cache
def why_not() -> str:
    """Why this machine has no hosts of our own; empty if it has."""
    for tool in ("ip", "ss", "unshare", "nsenter"):
        if shutil.which(tool, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))) is None:
            return f"{tool} is not installed"
    try:
        Network(("a", "b")).close()
    except OSError as error:
        return str(error)
    return ""


class Proxy:
    """A cable of a test's own, from one address to another, that can be cut (see proxy.py). `enter`: the host it is on.

    listen: "unix:PATH", as grpc names it too, or "host:port"; target: "host:port"
    """

    def __init__(self, listen: str, target: str, cuts: Path, *, enter: Sequence[str] = ()) -> None:
        self.address = listen
        self._cuts = cuts
        command = [*enter, sys.executable, str(Path(__file__).with_name("proxy.py")), listen, target, str(cuts)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise OSError(f"the proxy at {listen} ended with {self._process.wait()}")

    def cut(self, *ways: str) -> None:
        """From now on nothing passes these ways: "to" the target, "from" it; the others are whole."""
        self._cuts.write_text(" ".join(ways))

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self._process.poll() is None:
            self._process.communicate()
