"""Who makes room for a declared demand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.eviction import Tenant, evict

TENANTS = st.lists(
    st.builds(
        Tenant,
        st.text("abc", min_size=1, max_size=3),
        st.integers(0, 50),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda tenant: tenant.name,
)


def test_nobody_goes_where_there_is_room() -> None:
    """A hope is not a demand, and neither is a habit."""
    assert evict(10, 10, [Tenant("a", 40)]).go == ()


def test_the_least_recently_used_goes_first() -> None:
    """And no more of them than needed."""
    tenants = [Tenant("new", 10, 3), Tenant("old", 10, 1), Tenant("middle", 10, 2)]
    assert evict(18, 10, tenants).go == ("old",)
    assert evict(28, 10, tenants).go == ("old", "middle")


def test_one_that_turns_out_not_to_be_needed_stays() -> None:
    """The older one is small, and the next one is enough alone."""
    assert evict(40, 10, [Tenant("small", 2, 1), Tenant("large", 40, 2)]).go == ("large",)


def test_a_model_in_use_stays_and_a_demand_that_cannot_be_met_evicts_nobody() -> None:
    """It would not help; what lacks is said."""
    answer = evict(100, 10, [Tenant("busy", 80, 1, in_use=True), Tenant("idle", 30, 2)])
    assert answer.go == ()
    assert answer.short == 60


@given(st.integers(0, 200), st.integers(0, 100), TENANTS)
def test_enough_goes_and_everyone_who_goes_is_needed(
    need: int, room: int, tenants: list[Tenant]
) -> None:
    """Without any one of them it would not do."""
    sizes = {tenant.name: tenant.bytes for tenant in tenants}
    answer = evict(need, room, tenants)
    assert answer.freed == sum(sizes[name] for name in answer.go)
    assert not any(tenant.in_use for tenant in tenants if tenant.name in answer.go)
    if answer.short:
        idle = sum(tenant.bytes for tenant in tenants if not tenant.in_use)
        assert need - room - idle == answer.short
    else:
        assert room + answer.freed >= need
        assert all(room + answer.freed - sizes[name] < need for name in answer.go)
    assert evict(need, room, list(reversed(tenants))) == answer
