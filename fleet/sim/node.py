"""One simulated node: the agent protocol (docs/agent-protocol.md) as a machine that may fall ill.

Invariant: one task per node from boot to end; every request carries a sequence number that was
never sent before in this boot; nothing but the cloud's end of the machine or a final answer (409
on registering, 410) ends it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.clock import Chance
from fleet.errors import InputError
from fleet.sim.faults import Injection, Kind
from fleet.sim.machine import Machine
from fleet.sim.readings import DRIVER, gate_checks, product
from fleet.sim.transport import Answer, Transport
from fleet.userdata import BootData, parse

REGISTER, REPORT = "/v1/agent/register", "/v1/agent/report"
#: Codes that an agent tells once: they are events of a program, not a state of the machine.
_ONCE: Final = frozenset({"xid_13", "xid_31", "xid_43", "xid_45"})
_RETRY: Final = frozenset({425, 429})


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How simulated nodes behave, in seconds."""

    gate_s: tuple[float, float] = (2.0, 8.0)
    drain_s: tuple[float, float] = (20.0, 90.0)
    reboot_s: float = 90.0
    backoff_s: float = 2.0
    backoff_max_s: float = 60.0
    report_s: float = 15.0
    driver: str = DRIVER


class SimNode:
    """An agent on a simulated machine."""

    def __init__(
        self,
        machine: Machine,
        transport: Transport,
        chance: Chance,
        now: Callable[[], float],
        cut: Callable[[Machine], bool],
        settings: NodeSettings,
    ) -> None:
        """``cut(machine)`` says whether the network between this node and fleetd is cut now."""
        self.machine = machine
        self.node = ""
        self.reports = 0
        self.refused = 0
        self.drained = False
        self._transport, self._chance, self._now, self._cut = transport, chance, now, cut
        self._settings = settings
        self._key = (chance.token(32) + "0" * 64)[:64]
        self._headers: dict[str, str] = {}
        self._required: tuple[str, ...] = ()
        self._next_s = settings.report_s
        self._boot_id = ""
        self._seq = 0
        self._faults: list[dict[str, Any]] = []
        self._notice: dict[str, Any] | None = None
        self._draining = False
        self._gate = True
        self._plain = True
        self._rebooting = False
        self._reboot_s = settings.reboot_s
        self._urgent = False
        self._silent_until = -math.inf
        self._last_answer = b""
        self._obeyed: set[str] = set()
        self._wake: asyncio.Future[None] | None = None

    # -- what happens to the machine --------------------------------------------------------------

    def strike(self, fault: Injection) -> None:
        """Let a fault of the node's own kind happen now."""
        if fault.kind is Kind.NODE_SILENT:
            self._silent_until = self._now() + (fault.duration_s or math.inf)
        elif fault.kind is Kind.NODE_REBOOT:
            self._rebooting, self._reboot_s = True, fault.duration_s or self._settings.reboot_s
        elif fault.kind is Kind.GPU_FAULT:
            gpus = max(1, self.machine.offer.gpus)
            entry = {
                "code": fault.code or "xid_79",
                "gpu": int(self._chance.random() * gpus),
                "message": "simulated",
                "at": round(self._now(), 3),
            }
            self._faults.append(entry)
            if fault.duration_s > 0:
                asyncio.get_running_loop().call_later(fault.duration_s, self._heal, entry)
        self._touch()

    def notice(self, at: float) -> None:
        """The metadata service says that the machine is taken back at ``at``."""
        self._notice = {"kind": "spot", "at": round(at, 3), "message": "spot reclaim"}
        self._touch()

    def _heal(self, entry: dict[str, Any]) -> None:
        if entry in self._faults:
            self._faults.remove(entry)
            self._touch()

    def _drain_done(self) -> None:
        self.drained = True
        self._touch()

    def _touch(self) -> None:
        """Something is to be told at once."""
        self._plain = not (self._faults or self._notice or self.drained or self._gate)
        self._urgent = True
        if self._wake is not None:
            _set(self._wake)

    # -- the agent --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until the machine ends or fleetd says that the node has ended."""
        try:
            boot = parse(self.machine.user_data)
        except InputError:
            return  # somebody else's instance
        while True:
            self._boot_id = self._chance.uuid()
            self._seq, self._rebooting, self._gate, self._plain = 0, False, True, False
            if not await self._register(boot):
                return
            await self._wait(self._chance.uniform(*self._settings.gate_s))
            if await self._report_until_reboot(boot):
                return
            self._faults.clear()
            await asyncio.sleep(self._reboot_s)

    async def _register(self, boot: BootData) -> bool:
        """Get a node token; False when another agent has joined in this one's name."""
        body = json.dumps(
            {
                "boot_token": boot.boot_token,
                "provider": boot.provider,
                "instance_id": self.machine.id,
                "boot_id": self._boot_id,
                "key": self._key,
                "agent_version": "sim",
            }
        ).encode()
        tries = 0
        while True:
            answer = await self._call(REGISTER, {"content-type": "application/json"}, body)
            if answer is not None and answer[0] in (200, 201):
                said = json.loads(answer[2])
                self.node = said["node"]
                self._headers = {
                    "authorization": f"Bearer {said['node_token']}",
                    "content-type": "application/json",
                }
                self._next_s = float(said.get("report_interval_s", self._settings.report_s))
                self._required = tuple(said.get("required_checks", ()))
                return True
            if answer is not None and answer[0] in (409, 410):
                self.refused += 1
                return False
            tries += 1
            await asyncio.sleep(self._pause_s(tries, answer))

    async def _report_until_reboot(self, boot: BootData) -> bool:
        """Report for as long as this boot lasts; True when the node has ended for good."""
        head = f'{{"boot_id":"{self._boot_id}","seq":'.encode()
        tries = 0
        while not self._rebooting:
            if self._silent_until > self._now():
                await self._wait(self._silent_until - self._now())
                continue
            self._seq += 1
            if self._plain:
                sent_at = self._now()
                body = b'%b%d,"sent_at":%.3f,"kind":"status"}' % (head, self._seq, sent_at)
                answer = await self._call(REPORT, self._headers, body)
            else:
                answer = await self._tell()
            if answer is not None and answer[0] == 200:
                tries = 0
                self.reports += 1
                if answer[2] != self._last_answer:
                    self._obey(answer[2])
                await self._wait(self._next_s)
                continue
            if answer is not None and answer[0] == 410:
                return True
            if answer is not None and answer[0] == 401 and not await self._register(boot):
                return True
            tries += 1
            await self._wait(self._pause_s(tries, answer))
        return False

    async def _tell(self) -> Answer | None:
        """A report with everything that is not plain; what it told once is then forgotten."""
        faults, gate = list(self._faults), self._gate
        report: dict[str, Any] = {
            "boot_id": self._boot_id,
            "seq": self._seq,
            "sent_at": round(self._now(), 3),
            "kind": "gate" if gate else "status",
        }
        if gate:
            report |= self._inspect()
        if faults:
            report["faults"] = faults
        if self._notice:
            report["notice"] = self._notice
        if self.drained:
            report["drained"] = True
        body = json.dumps(report).encode()
        answer = await self._call(REPORT, self._headers, body)
        if answer is not None and answer[0] == 200:
            if gate:
                self._gate = False
            self._faults = [f for f in self._faults if f not in faults or f["code"] not in _ONCE]
            self._plain = not (self._faults or self._notice or self.drained or self._gate)
        return answer

    def _inspect(self) -> dict[str, Any]:
        offer, failing = self.machine.offer, self.machine.failing
        gpus = offer.gpus - 1 if "gpu_count" in failing else offer.gpus
        return {
            "inventory": {
                "gpu": product(offer.gpu),
                "gpus": gpus,
                "driver": self._settings.driver,
            },
            "checks": gate_checks(self._required, failing, offer.gpus, self._chance),
        }

    def _obey(self, body: bytes) -> None:
        """Follow an answer: when to report next and what to do."""
        said = json.loads(body)
        self._next_s = float(said.get("next_s", self._next_s))
        commands = said.get("commands", ())
        kinds = [c["kind"] for c in commands]
        if "drain" in kinds and not self._draining:
            self._draining = True
            drain_s = self._chance.uniform(*self._settings.drain_s)
            asyncio.get_running_loop().call_later(drain_s, self._drain_done)
        if "gate" in kinds:
            self._gate, self._plain = True, False
            # A new command is obeyed at once; one that is repeated, with the next report.
            new = {str(c["id"]) for c in commands} - self._obeyed
            self._urgent = bool(new)
            self._obeyed |= new
        # Only an answer that asks for nothing may be skipped the next time.
        self._last_answer = b"" if kinds else body

    async def _call(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """One request; None when no answer came."""
        if self._cut(self.machine):
            return None
        try:
            answer = await self._transport.call("POST", path, headers, body, self.machine.peer)
        except ConnectionError:
            return None
        if 400 <= answer[0] < 500 and answer[0] not in _RETRY:
            self.refused += 1
        return answer

    def _pause_s(self, tries: int, answer: Answer | None) -> float:
        """How long to wait before trying again: what fleetd asks for, or growing and jittered."""
        s = self._settings
        asked = answer[1].get("retry-after", "") if answer is not None else ""
        grown = min(s.backoff_max_s, s.backoff_s * 2.0 ** min(tries - 1, 10))
        pause_s = grown * (0.5 + self._chance.random())
        return max(pause_s, float(asked)) if asked.isdigit() else pause_s

    async def _wait(self, seconds: float) -> None:
        """Wait, or less when something is to be told at once."""
        if self._urgent:
            self._urgent = False
            return
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        timer = None if math.isinf(seconds) else loop.call_later(seconds, _set, wake)
        try:
            await wake
        finally:
            self._wake, self._urgent = None, False
            if timer is not None:
                timer.cancel()


def _set(wake: asyncio.Future[None]) -> None:
    if not wake.done():
        wake.set_result(None)
