"""Bounded pools against a driver that is played; tests/gpu has the real one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tightfit.card import driver_pool
from tightfit.card.driver_pool import DriverPools, PoolFigures
from tightfit.units import MIB

GRAIN = 32 * MIB
DEFAULT = 77


class PlayedDriver:
    """The six calls of the driver that pools need, on books of its own."""

    def __init__(self) -> None:
        self.current = DEFAULT
        self.pools: dict[int, dict[int, int]] = {}
        self.sizes: list[int] = []

    def cuMemPoolCreate(self, handle: Any, props: Any) -> int:
        handle._obj.value = len(self.sizes) + 1
        self.sizes.append(props._obj.max_size)
        self.pools[handle._obj.value] = {}
        return 0

    def cuDeviceGetMemPool(self, handle: Any, _device: int) -> int:
        handle._obj.value = self.current
        return 0

    def cuDeviceSetMemPool(self, _device: int, handle: ctypes.c_void_p) -> int:
        self.current = handle.value or 0
        return 0

    def cuMemPoolGetAttribute(self, handle: ctypes.c_void_p, key: int, into: Any) -> int:
        into._obj.value = self.pools[handle.value or 0].get(key, 0)
        return 0

    def cuMemPoolSetAttribute(self, handle: ctypes.c_void_p, key: int, value: Any) -> int:
        self.pools[handle.value or 0][key] = value._obj.value
        return 0

    def cuMemPoolTrimTo(self, handle: ctypes.c_void_p, _size: ctypes.c_size_t) -> int:
        self.pools[handle.value or 0][driver_pool._RESERVED] = 0
        return 0

    def cuMemPoolDestroy(self, handle: ctypes.c_void_p) -> int:
        del self.pools[handle.value or 0]
        return 0


@pytest.fixture(name="driver")
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedDriver:
    """In place of libcuda."""
    driver = PlayedDriver()
    monkeypatch.setattr(driver_pool.ctypes, "CDLL", lambda name: driver)
    return driver


@pytest.fixture(name="pools")
def opened(driver: PlayedDriver) -> DriverPools:
    """With the grain known, since learning it takes a device."""
    pools = DriverPools(0)
    pools._grain = GRAIN
    return pools


def test_a_size_is_rounded_down_to_the_grain(driver: PlayedDriver, pools: DriverPools) -> None:
    """The driver would round it up, over the budget."""
    with pools.bounded(3 * GRAIN + 5):
        assert driver.current == 1
    assert driver.sizes == [3 * GRAIN]


def test_no_room_is_not_no_limit(driver: PlayedDriver, pools: DriverPools) -> None:
    """A pool of size 0 would be unlimited."""
    for size in (0, -5, 1):
        with pools.bounded(size):
            pass
    assert driver.sizes == [GRAIN] * 3


def test_the_pool_from_before_is_back_after_an_error(
    driver: PlayedDriver, pools: DriverPools
) -> None:
    """The error path restores too, level by level."""
    with pools.bounded(4 * GRAIN):
        with pytest.raises(RuntimeError, match="planted"), pools.bounded(GRAIN):
            raise RuntimeError("planted")
        assert driver.current == 1
    assert driver.current == DEFAULT
    assert not driver.pools


def test_a_driver_that_refuses_everything_does_not_hide_what_broke_it(
    driver: PlayedDriver, pools: DriverPools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access even the way back fails; the first error is told."""

    def work() -> None:
        monkeypatch.setattr(driver, "cuDeviceSetMemPool", lambda *_: 700)
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"), pools.bounded(GRAIN):
        work()


def test_a_pool_that_cannot_be_put_back_is_an_error(
    driver: PlayedDriver, pools: DriverPools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing else to tell, it is told."""
    with pytest.raises(RuntimeError, match="700 to cuDeviceSetMemPool"), pools.bounded(GRAIN):
        monkeypatch.setattr(driver, "cuDeviceSetMemPool", lambda *_: 700)


def test_what_outlives_its_pool_is_counted_until_it_goes(
    driver: PlayedDriver, pools: DriverPools
) -> None:
    """A pool with a live tensor is kept on the books; an empty one is destroyed."""
    with pools.bounded(4 * GRAIN):
        driver.pools[1].update({driver_pool._USED: 100, driver_pool._RESERVED: GRAIN})
    assert pools.read() == PoolFigures(allocated=100, reserved=GRAIN)
    driver.pools[1][driver_pool._USED] = 0
    pools.trim()
    assert pools.read() == PoolFigures()
    assert not driver.pools


def test_a_machine_without_the_drivers_library_has_no_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then PyTorch's own limit is all there is."""

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(driver_pool.ctypes, "CDLL", missing)
    driver_pool.driver_pools.cache_clear()
    assert driver_pool.driver_pools(0) is None
    driver_pool.driver_pools.cache_clear()
