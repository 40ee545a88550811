"""What applying one ``PolicySet`` over another would change, as data.

Invariant: pure and deterministic (objects by kind and name, fields in the order of the schema);
equal sets have no changes; rendering is others' work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from policies.document import Steps, pointer
from policies.policyset import PolicySet
from policies.schema import KINDS, Policy


class Action(StrEnum):
    """What happens to an object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs (or a whole object that comes or goes: empty ``pointer``).

    ``old`` and ``new`` are JSON values, None where the field was or will be absent. ``effect`` is
    a sentence on what fleetd will do, "" where it does nothing by itself.
    """

    action: Action
    kind: str
    name: str
    pointer: str
    old: Any
    new: Any
    effect: str = ""

    @property
    def object(self) -> str:
        """``pool/train``, as commands take it."""
        return f"{self.kind.lower()}/{self.name}"


def diff(old: PolicySet, new: PolicySet) -> tuple[Change, ...]:
    """Changes from ``old`` to ``new``. For an apply pass ``files.over(applied)`` as ``new``."""
    return tuple(_changes(old, new))


def _changes(old: PolicySet, new: PolicySet) -> Iterator[Change]:
    for kind in KINDS:
        before = {p.metadata.name: p for p in old if p.kind == kind}
        after = {p.metadata.name: p for p in new if p.kind == kind}
        for name in sorted(before.keys() | after.keys()):
            yield from _object(kind, name, before.get(name), after.get(name), new)


def _object(
    kind: str, name: str, before: Policy | None, after: Policy | None, new: PolicySet
) -> Iterator[Change]:
    old_spec: dict[str, Any] = before.model_dump(mode="json")["spec"] if before else {}
    new_spec: dict[str, Any] = after.model_dump(mode="json")["spec"] if after else {}
    if before is None:
        effect = _created(kind, new_spec)
        yield Change(Action.CREATE, kind, name, "", None, new_spec, effect)
    elif after is None:
        effect = _deleted(kind, old_spec)
        yield Change(Action.DELETE, kind, name, "", old_spec, None, effect)
    else:
        for path, was, will in _leaves(old_spec, new_spec, ("spec",)):
            effect = _effect(kind, name, path, was, will, new_spec, new)
            yield Change(Action.UPDATE, kind, name, pointer(path), was, will, effect)


Leaf = tuple[Steps, Any, Any]


def _leaves(old: Any, new: Any, path: Steps) -> Iterator[Leaf]:
    """Fields that differ. Lists of objects are compared entry by entry where each has an identity
    (so that one inserted offer is one change), all other lists as a whole.
    """
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(k for k in old if k not in new)]:
            yield from _leaves(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and (ident := _IDENTITY.get(path[-1])):
        yield from _entries(old, new, path, ident)
    else:
        yield path, old, new


Identity = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def _fields(*names: str) -> Identity:
    def ident(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(str(entry[name]) for name in names)

    return ident


_IDENTITY: Final[Mapping[str | int, Identity]] = {
    "offers": _fields("provider", "region", "zone", "zones", "type", "market"),
    "versions": _fields("version"),
    "artifacts": _fields("provider", "region"),
    "webhooks": _fields("url"),
}


def _entries(old: list[Any], new: list[Any], path: Steps, ident: Identity) -> Iterator[Leaf]:
    was = {ident(entry): i for i, entry in enumerate(old)}
    will = {ident(entry): i for i, entry in enumerate(new)}
    if len(was) != len(old) or len(will) != len(new):
        yield path, old, new
        return
    for key, i in will.items():
        before = old[was[key]] if key in was else None
        yield from _leaves(before, new[i], (*path, i))
    for key, i in was.items():
        if key not in will:
            yield (*path, i), old[i], None
    stayed = [key for key in was if key in will]
    if path[-1] == "offers" and stayed != [key for key in will if key in was]:
        order = [" ".join(p for p in key if p != "None") for key in was]
        yield path, order, [" ".join(p for p in key if p != "None") for key in will]


def _created(kind: str, spec: Mapping[str, Any]) -> str:
    if kind != "Pool":
        return ""
    nodes, spares = spec["nodes"], spec["spares"]
    if isinstance(spares, int):
        return f"launch {_nodes(nodes + spares)}: {nodes} in service, {_spares(spares)}"
    return f"launch {_nodes(nodes)} in service and at most {_spares(spares['max'])}"


def _deleted(kind: str, spec: Mapping[str, Any]) -> str:
    if kind != "Pool":
        return ""
    return f"drain and terminate all nodes of the pool ({_nodes(spec['nodes'])} in service)"


def _effect(
    kind: str, name: str, path: Steps, old: Any, new: Any, spec: Mapping[str, Any], after: PolicySet
) -> str:
    if kind == "Pool":
        return _pool_effect(path, old, new, spec)
    if kind == "HealthPolicy":
        pools = sorted(p.metadata.name for p in after.pools.values() if p.spec.health == name)
        return f"judges nodes of {_list(pools)} from the next report on" if pools else ""
    if path[1] == "versions" and len(path) == 3 and old is None:
        return "no node changes until a pool or a rollout names the version"
    return ""


def _pool_effect(path: Steps, old: Any, new: Any, spec: Mapping[str, Any]) -> str:
    top = path[1]
    if top == "nodes":
        if new > old:
            return f"launch {new - old} more node{'s' * (new - old != 1)}"
        return f"take {_nodes(old - new)} out of service"
    if top == "spares":
        return _spares_effect(path, old, new)
    if top in {"gpu", "gpus_per_node", "image"}:
        share = spec["disruption"]["budget"]
        return f"replace all nodes, at most {share} at once, spares first"
    if top == "offers":
        return _offers_effect(path, old, new)
    if top == "health":
        return "judge all nodes by the other policy from the next report on"
    if top == "repair" and path[-1] == "mode":
        return "stop replacing sick nodes" if new == "none" else "replace sick nodes again"
    if top == "disruption" and path[-1] == "windows" and new:
        return "replace healthy nodes only inside the windows"
    if top == "slots":
        return "move assignments to the new slot names"
    if top == "webhooks" and len(path) == 3:
        return "tell one receiver more" if old is None else "tell one receiver less"
    return ""


def _spares_effect(path: Steps, old: Any, new: Any) -> str:
    if len(path) == 2 and isinstance(old, int) and isinstance(new, int):
        if new > old:
            return f"launch {new - old} more spare{'s' * (new - old != 1)}"
        return f"terminate {_spares(old - new)}"
    if len(path) == 2 and isinstance(new, dict):
        return f"size spares by measured failure and refill, at most {new['max']}"
    if len(path) == 2:
        return f"keep {_spares(new)}, whatever is measured"
    return "size spares anew"


def _offers_effect(path: Steps, old: Any, new: Any) -> str:
    if len(path) == 2:
        return "try offers in the new order from the next launch on"
    if len(path) > 3:
        return "rank the offer by the new price"
    if old is None:
        return "launch there too from the next launch on"
    if new is None:
        return "launch no more nodes there; running nodes stay"
    return ""


def _nodes(n: int) -> str:
    return f"{n} node" if n == 1 else f"{n} nodes"


def _spares(n: int) -> str:
    return f"{n} spare" if n == 1 else f"{n} spares"


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown + (f" and {len(names) - 5} more pools" if len(names) > 5 else "")
