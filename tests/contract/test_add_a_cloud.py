"""docs/add-a-cloud.md: the file it shows is a cloud, from the registry to the contract suite."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import providers
from fleet import opening
from fleet.clock import LoopClock, SeededChance
from fleet.errors import Ambiguous, InputError
from fleet.model import Instance, LaunchSpec, Market, Need, Offer, Owner
from providers import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/add-a-cloud.md").read_text("utf-8")


def shown(title: str) -> str:
    """The block of the page under ``title``."""
    block = rf"^```\w+ title={re.escape(title)}\n(.*?)^```$"
    (found,) = re.findall(block, PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The page's file, found as any other cloud is."""
    (tmp_path / "toy.py").write_text(shown("providers/toy.py"), "utf-8")
    monkeypatch.setattr(providers, "__path__", [*providers.__path__, str(tmp_path)])
    registry.kinds.cache_clear()
    yield registry.cloud("toy")  # type: ignore[misc]
    registry.kinds.cache_clear()
    del sys.modules["providers.toy"]
    del providers.toy  # type: ignore[attr-defined]


class ToyHarness:
    """What the contract suite asks of a cloud, in front of the wrapped provider."""

    name = "toy"
    can = frozenset({"tokens", "capacity"})
    many = 250

    def __init__(self, runner: asyncio.Runner, stock: int) -> None:
        self._runner = runner
        raw = {"kind": "toy", "regions": ["north"], "stock": stock, "limits": {"attempts": 1}}
        self.provider = runner.run(self._open(raw))

    async def _open(self, raw: dict[str, Any]) -> Any:
        settings = registry.parse(raw)
        return registry.open_provider(settings, clock=LoopClock(), chance=SeededChance(1))

    @property
    def vendor(self) -> Any:
        return self.provider.inner._vendor

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    async def pass_time(self, seconds: float) -> None:
        """The toy cloud is never late."""

    def count(self, token: str) -> int:
        rows = self.vendor.machines.values()
        return sum(m["power"] == "on" and m["tags"]["fleetd-token"] == token for m in rows)

    def offer(self) -> Offer:
        return Offer("toy", "north", "a", "toy.8", Market.ON_DEMAND, "H100", 8, 16.0)

    def spec(self, token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
        values: dict[str, Any] = {
            "token": token, "offer": self.offer(), "count": count, "image_id": "toy-image",
            "user_data": "", "tags": {}, "pool": "train", "cell": cell,
        }  # fmt: skip
        return LaunchSpec(**values | over)

    async def listed(self, cell: str = "cell") -> list[Instance]:
        return [i async for i in self.provider.list(Owner(cell))]

    async def settled(self, cell: str, done: Callable[[list[Instance]], bool]) -> list[Instance]:
        found = await self.listed(cell)
        assert done(found)
        return found


Make = Callable[[int], ToyHarness]


@pytest.fixture
def made(toy: ModuleType) -> Iterator[Make]:
    with asyncio.Runner() as runner:
        harnesses: list[ToyHarness] = []

        def make(stock: int) -> ToyHarness:
            harnesses.append(ToyHarness(runner, stock))
            return harnesses[-1]

        yield make
        for harness in harnesses:
            runner.run(harness.provider.aclose())


def suite() -> ModuleType:
    """The contract suite's module, whatever name pytest has given its own copy."""
    path = Path(__file__).with_name("test_contract.py")
    spec = importlib.util.spec_from_file_location("contract_of_toy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTRACTS = (
    "a_batch_is_one_token_and_so_many_instances",
    "the_same_token_twice_makes_one_batch",
    "spot_is_spot",
    "delete_until_gone",
    "an_unknown_id_does_not_save_the_others",
    "lists_are_paged_to_the_end",
    "instances_of_other_cells_are_not_ours",
)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_shown_cloud_keeps_the_contracts(made: Make, contract: str) -> None:
    getattr(suite(), f"test_{contract}")(made(10_000))


def test_the_shown_cloud_says_why_a_batch_is_partial(made: Make) -> None:
    suite().test_a_partial_batch_says_why_for_the_rest(made)


def test_every_code_is_its_class(toy: ModuleType, made: Make) -> None:
    h = made(10)
    for code, kind in toy.CODES.items():
        h.vendor.deny = code
        with pytest.raises(kind) as raised:
            h.run(h.provider.create(h.spec(f"tok-{code.lower()}")))
        assert raised.value.code == code
    h.vendor.deny = "NeverHeardOf"
    with pytest.raises(Ambiguous, match="NeverHeardOf"):
        h.run(h.provider.create(h.spec("tok-unknown", 2)))


def test_the_registry_finds_it_and_the_configuration_takes_it(
    toy: ModuleType, tmp_path: Path
) -> None:
    assert registry.kinds() == ("aws", "azure", "gcp", "oci", "toy")
    path = tmp_path / "fleetd.yaml"
    path.write_text(shown("fleetd.yaml"), "utf-8")
    settings = opening.configuration(path)
    assert settings.provider_names == ["toy-1"]

    async def main() -> list[Offer]:
        opened = opening.providers(settings, LoopClock(), SeededChance(1), None)
        found = list(await opened["toy-1"].offers(Need("H100", 8)))
        await opened["toy-1"].aclose()
        return found

    assert [o.key for o in asyncio.run(main())] == ["toy-1/north/a/toy.8/on_demand"]
    path.write_text(shown("fleetd.yaml").replace("regions", "region"), "utf-8")
    with pytest.raises(InputError, match=r"fleetd\.yaml:3: providers\.0\.regions"):
        opening.configuration(path)


def test_it_is_gone_without_its_file() -> None:
    assert "toy" not in registry.kinds()
