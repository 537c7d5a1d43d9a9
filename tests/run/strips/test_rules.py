"""Every operator on some rows gives those rows of what it gives on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tightfit.plan.strips.network import Kind
from tightfit.run.strips.part import Part
from tightfit.run.strips.program import programmed
from tightfit.run.strips.rules import RULES, rule_for
from tightfit.run.strips.seen import Seen, as_list
from tightfit.weigh.network.graph import Graph, Node, Ref, Value
from tightfit.weigh.network.recorder import FUNCTIONS_BY_NAME

aten = torch.ops.aten
MOVES = {
    "permute", "transpose", "t", "unsqueeze", "squeeze", "view", "_unsafe_view", "reshape",
    "expand", "repeat", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "cat",
    "stack", "constant_pad_nd", "pixel_shuffle", "pixel_unshuffle",
}  # fmt: skip
Draw = Any


@dataclass
class Case:
    """A call of one operator; `axes` says along which axis the rows of each tensor lie."""

    args: tuple[Any, ...]
    axes: Mapping[int, int]
    func: Callable[..., Any] | None = None
    weights: tuple[int, ...] = field(default=())


def shape_of(draw: Draw, least: int = 2, most: int = 5, *, low: int = 1) -> list[int]:
    """Small sizes."""
    return draw(st.lists(st.integers(low, 6), min_size=least, max_size=most))


def values(shape: list[int] | tuple[int, ...]) -> torch.Tensor:
    """Seeded, so that an example is the same whenever it runs."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(sum(shape)))


def axis_of(draw: Draw, shape: list[int], least: int = 0) -> int:
    """Any from `least` on."""
    return draw(st.integers(least, len(shape) - 1))


def plain(draw: Draw, rest: Callable[[Draw, list[int], int], tuple[Any, ...]], **kw: Any) -> Case:
    """An operator of one tensor, and what else it is given."""
    shape = shape_of(draw, **kw)
    axis = axis_of(draw, shape)
    return Case((values(shape), *rest(draw, shape, axis)), {0: axis})


def any_dim(draw: Draw, shape: list[int], other: int | None = None) -> int:
    """Counted from either end; rarely `other`, which is that of the rows."""
    dims = [d for d in range(len(shape)) if d != other] or [0]
    dim = draw(st.sampled_from(dims))
    return dim - len(shape) if draw(st.booleans()) else dim


def permuted(draw: Draw, shape: list[int], axis: int) -> tuple[Any, ...]:
    return (draw(st.permutations(range(len(shape)))),)


def reshaped(draw: Draw, shape: list[int], axis: int) -> tuple[Any, ...]:
    """Axes joined, parted, added."""
    new = list(shape)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(new) - 1))
        kind = draw(st.sampled_from(["join", "part", "one"]))
        if kind == "join" and at + 1 < len(new):
            new[at : at + 2] = [new[at] * new[at + 1]]
        elif kind == "part" and new[at] % 2 == 0:
            new[at : at + 1] = [new[at] // 2, 2]
        else:
            new.insert(at, 1)
    return (new,)


def sliced(draw: Draw, shape: list[int], axis: int) -> tuple[Any, ...]:
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(-shape[dim], shape[dim] - 1))
    first = start % shape[dim] if start else 0
    end = draw(st.integers(first + 1, shape[dim] + 3))
    return dim, start, end, draw(st.integers(1, 3))


def squeezed(draw: Draw) -> Case:
    shape = shape_of(draw, 3, 5)
    dim = draw(st.integers(0, len(shape) - 1))
    shape[dim] = 1
    axis = axis_of(draw, shape)
    if draw(st.booleans()):
        return Case((values(shape), dim), {0: axis}, aten.squeeze.dim)
    return Case((values(shape), [dim]), {0: axis}, aten.squeeze.dims)


def split(draw: Draw, shape: list[int], axis: int) -> tuple[Any, ...]:
    return draw(st.integers(1, 4)), any_dim(draw, shape, axis)


def split_sizes(draw: Draw, shape: list[int], axis: int) -> tuple[Any, ...]:
    dim = any_dim(draw, shape, axis)
    first = draw(st.integers(0, shape[dim]))
    return [first, shape[dim] - first], dim


def joined(draw: Draw, *, stacked: bool) -> Case:
    shape = shape_of(draw, 2, 4)
    axis = axis_of(draw, shape)
    dim = draw(st.integers(0, len(shape) - 1 + stacked))
    other = list(shape)
    if not stacked:
        other[dim] = draw(st.integers(1, 5))
    return Case(([values(shape), values(other)], dim), {0: axis, 1: axis})


def padded(draw: Draw, space: int, mode: str) -> Case:
    shape = [*shape_of(draw, 1, 2), *shape_of(draw, space, space, low=3)][-space - 2 :]
    while len(shape) < space + 1:
        shape.insert(0, 2)
    axis = axis_of(draw, shape, len(shape) - space if draw(st.booleans()) else 0)
    most = 2 if mode == "reflection" else 4
    sides = draw(st.lists(st.integers(0, most), min_size=2 * space, max_size=2 * space))
    args: tuple[Any, ...] = (values(shape), sides)
    if mode == "constant":
        args += (draw(st.sampled_from([0, 1.5])),)
    return Case(args, {0: axis})


def convolution(draw: Draw) -> Case:
    space = draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    groups = draw(st.sampled_from([1, 1, 2]))
    inside, outside = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    sizes = [draw(st.integers(1, 3 if space > 1 else 5)) for _ in range(space)]
    stride = [draw(st.integers(1, 3)) for _ in range(space)]
    dilation = [draw(st.integers(1, 2)) for _ in range(space)]
    spread = [(s - 1) * d for s, d in zip(sizes, dilation, strict=True)]
    padding = [draw(st.integers(0, most if transposed else most + 1)) for most in spread]
    extra = [draw(st.integers(0, s - 1)) if transposed else 0 for s in stride]
    lengths = [draw(st.integers(s + 1, s + 7)) for s in spread]
    shape = [draw(st.integers(1, 2)), inside, *lengths]
    pair = (inside, outside // groups) if transposed else (outside, inside // groups)
    weight = values([*pair, *sizes])
    bias = values([outside]) if draw(st.booleans()) else None
    if draw(st.booleans()) and len({*stride, *padding, *dilation}) == 0:
        stride = stride[:1]
    args = (values(shape), weight, bias, stride, padding, dilation, transposed, extra, groups)
    axis = axis_of(draw, shape, 2 if draw(st.integers(0, 4)) else 0)
    return Case(args, {0: axis}, weights=(1, 2))


def pooled(draw: Draw, space: int) -> Case:
    size = [draw(st.integers(1, 3)) for _ in range(space)]
    step = [draw(st.integers(1, 3)) for _ in range(space)]
    shape = [1, 2, *(draw(st.integers(3, 9)) for _ in range(space))]
    args: tuple[Any, ...] = (values(shape), size)
    if draw(st.booleans()):
        args += (step,)
    return Case(args, {0: axis_of(draw, shape, 2)})


def nearest(draw: Draw, space: int) -> Case:
    shape = [1, 2, *(draw(st.integers(1, 5)) for _ in range(space))]
    times = [draw(st.integers(1, 3)) for _ in range(space)]
    sizes = [length * each for length, each in zip(shape[2:], times, strict=True)]
    return Case((values(shape), sizes), {0: axis_of(draw, shape, 2)})


def shuffled(draw: Draw, *, back: bool) -> Case:
    times = draw(st.integers(1, 3))
    channels, height, width = (draw(st.integers(1, 4)) for _ in range(3))
    if back:
        shape = [1, channels, height * times, width * times]
    else:
        shape = [1, channels * times**2, height, width]
    return Case((values(shape), times), {0: draw(st.sampled_from([2, 2, 3]))})


def reduced(draw: Draw, func: Any, at: int = 1) -> Case:
    shape = shape_of(draw, 2, 4)
    axis = axis_of(draw, shape)
    dims = [any_dim(draw, shape, axis)]
    args = (values(shape), *((2,) if at == 2 else ()), dims)
    if func is aten.var.correction:
        return Case(args, {0: axis}, lambda x, d: aten.var.correction(x, d, correction=0))
    return Case((*args, draw(st.booleans())), {0: axis}, func)


def along(draw: Draw, shape: list[int], axis: int) -> tuple[Any, ...]:
    return (any_dim(draw, shape, axis),)


def layer_norm(draw: Draw, *, vector: bool) -> Case:
    shape = shape_of(draw, 2, 4)
    inside = shape[draw(st.integers(1, len(shape) - 1)) :]
    axis = axis_of(draw, shape)
    if vector:
        return Case((values(shape), inside, values(inside), 1e-6), {0: axis})
    return Case((values(shape), inside, values(inside), values(inside), 1e-5), {0: axis})


def batch_norm(draw: Draw) -> Case:
    shape = shape_of(draw, 3, 5)
    each = [values([shape[1]]) for _ in range(3)]
    args = (values(shape), each[0], each[1].abs() + 0.1, each[1], each[2], False, 0.1, 1e-5)
    return Case(args, {0: axis_of(draw, shape)})


def linear(draw: Draw) -> Case:
    shape = shape_of(draw, 2, 4)
    return Case((values(shape), values([3, shape[-1]]), values([3])), {0: axis_of(draw, shape)})


def product(draw: Draw, name: str) -> Case:
    one, two, three = (draw(st.integers(1, 6)) for _ in range(3))
    items = [2] if name == "bmm" else []
    left, right = values([*items, one, two]), values([*items, two, three])
    if name == "addmm":
        return Case((values([three]), left, right), {1: draw(st.sampled_from([0, 0, 1]))})
    return Case((left, right), {0: axis_of(draw, [*items, one, two])})


def attention(draw: Draw) -> Case:
    items, heads, queries, keys, width = (draw(st.integers(1, 5)) for _ in range(5))
    query = values([items, heads, queries, width])
    key = values([items, heads, keys, width])
    value = values([items, heads, keys, draw(st.integers(1, 5))])
    mask = values([queries, keys]) if draw(st.booleans()) else None
    axis = draw(st.sampled_from([0, 1, 2, 2, 2, 3]))
    axes = {0: axis, 1: axis, 2: axis} if axis < 2 or queries == keys else {0: axis}
    return Case((query, key, value, mask, 0.0, False, None, False), axes)


def expanded(draw: Draw) -> Case:
    shape = shape_of(draw, 2, 4)
    axis = axis_of(draw, shape)
    wide = [draw(st.integers(2, 3)) if n == 1 and draw(st.booleans()) else n for n in shape]
    lead = draw(st.lists(st.integers(1, 3), max_size=1))
    return Case((values(shape), [*lead, *wide]), {0: axis})


def repeated(draw: Draw) -> Case:
    shape = shape_of(draw, 2, 3)
    axis = axis_of(draw, shape)
    times = [1 if at == axis else draw(st.integers(1, 3)) for at in range(len(shape))]
    lead = draw(st.lists(st.integers(1, 2), max_size=1))
    return Case((values(shape), [*lead, *times]), {0: axis})


def pointwise(draw: Draw) -> Case:
    shape = shape_of(draw, 2, 4)
    axis = axis_of(draw, shape)
    other = [n if draw(st.booleans()) else 1 for n in shape][draw(st.integers(0, 1)) :]
    at = axis - len(shape) + len(other)
    axes = {0: axis}
    if at >= 0 and other[at] == shape[axis] and draw(st.booleans()):
        axes[1] = at
    return Case((values(shape), values(other)), axes)


CASES: dict[str, Callable[[Draw], Case]] = {
    "permute": lambda d: plain(d, permuted),
    "transpose": lambda d: plain(d, lambda d, s, a: (any_dim(d, s), any_dim(d, s))),
    "t": lambda d: plain(d, lambda d, s, a: (), least=2, most=2),
    "unsqueeze": lambda d: plain(d, lambda d, s, a: (d(st.integers(-len(s) - 1, len(s))),)),
    "squeeze": squeezed,
    "view": lambda d: plain(d, reshaped),
    "_unsafe_view": lambda d: plain(d, reshaped),
    "reshape": lambda d: plain(d, reshaped),
    "expand": expanded,
    "repeat": repeated,
    "slice": lambda d: plain(d, sliced),
    "select": lambda d: plain(d, lambda d, s, a: (any_dim(d, s, a), 0)),
    "split": lambda d: plain(d, split),
    "split_with_sizes": lambda d: plain(d, split_sizes),
    "chunk": lambda d: plain(d, split),
    "unbind": lambda d: plain(d, along),
    "cat": lambda d: joined(d, stacked=False),
    "stack": lambda d: joined(d, stacked=True),
    "constant_pad_nd": lambda d: padded(d, d(st.integers(1, 3)), "constant"),
    **{
        f"{mode}_pad{space}d": lambda d, s=space, m=mode: padded(d, s, m)  # type: ignore[misc]
        for mode in ("replication", "reflection")
        for space in (1, 2, 3)
    },
    "convolution": convolution,
    **{f"avg_pool{s}d": lambda d, s=s: pooled(d, s) for s in (1, 2, 3)},  # type: ignore[misc]
    **{
        f"{name}{s}d": lambda d, s=s: nearest(d, s)  # type: ignore[misc]
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for s in (1, 2, 3)
    },
    "pixel_shuffle": lambda d: shuffled(d, back=False),
    "pixel_unshuffle": lambda d: shuffled(d, back=True),
    "mean": lambda d: reduced(d, aten.mean.dim),
    "sum": lambda d: reduced(d, aten.sum.dim_IntList),
    "var": lambda d: reduced(d, aten.var.correction),
    "amax": lambda d: reduced(d, aten.amax.default),
    "amin": lambda d: reduced(d, aten.amin.default),
    "linalg_vector_norm": lambda d: reduced(d, aten.linalg_vector_norm.default, 2),
    "_softmax": lambda d: plain(d, lambda d, s, a: (*along(d, s, a), False)),
    "_log_softmax": lambda d: plain(d, lambda d, s, a: (*along(d, s, a), False)),
    "cumsum": lambda d: plain(d, along),
    "normalize": lambda d: plain(d, lambda d, s, a: (2.0, *along(d, s, a), 1e-12)),
    "layer_norm": lambda d: layer_norm(d, vector=False),
    "rms_norm": lambda d: layer_norm(d, vector=True),
    "batch_norm": batch_norm,
    "linear": linear,
    "mm": lambda d: product(d, "mm"),
    "addmm": lambda d: product(d, "addmm"),
    "bmm": lambda d: product(d, "bmm"),
    "attention": attention,
}
FUNCS: dict[str, Any] = {
    "transpose": aten.transpose.int, "slice": aten.slice.Tensor, "select": aten.select.int,
    "split": aten.split.Tensor, "unbind": aten.unbind.int,
}  # fmt: skip


def function_of(name: str) -> Callable[..., Any]:
    """What the recorder writes down under that name."""
    if name in FUNCTIONS_BY_NAME:
        return FUNCTIONS_BY_NAME[name]
    found: Callable[..., Any] = FUNCS.get(name) or getattr(aten, name).default
    return found


def seen_of(name: str, case: Case) -> tuple[Seen, list[torch.Tensor], list[torch.Tensor]]:
    """The node, what it reads, and what it makes of it."""
    tensors: list[torch.Tensor] = []

    def numbered(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Ref(len(tensors) - 1)
        return type(value)(map(numbered, value)) if type(value) in (list, tuple) else value

    args = numbered(case.args)
    func = case.func or function_of(name)
    result = func(*case.args)
    made = as_list(result)
    table = [
        Value(at, tuple(t.shape), t.dtype, at, "w" if at in case.weights else None)
        for at, t in enumerate([*tensors, *made])
    ]
    reads, makes = tuple(range(len(tensors))), tuple(range(len(tensors), len(table)))
    node = Node(name, func, args, {}, reads, makes, not isinstance(result, torch.Tensor))
    graph = Graph(tuple(table), (node,), 0, makes[0])
    return Seen(graph, node, dict(case.axes), 1), tensors, made


def check(
    part: Part, tensors: list[torch.Tensor], made: list[torch.Tensor], span: tuple[int, int],
    *, exact: bool,
) -> None:  # fmt: skip
    """Some rows, by themselves, are those rows of the whole."""
    assert part.axis is not None
    given, rows = [], []
    for need in part.needs:
        tensor = tensors[need.value]
        if need.axis is None:
            given.append(tensor)
            rows.append((0, 0))
            continue
        assert need.reach is not None
        begin, end = need.reach.needs(*span, tensor.shape[need.axis])
        given.append(tensor.narrow(need.axis, begin, end - begin))
        rows.append((begin, end))
    found = part.run(given, span, rows)
    assert len(found) == len(made)
    for one, whole in zip(found, made, strict=True):
        expected = whole.narrow(part.axis, span[0], span[1] - span[0])
        assert one.shape == expected.shape
        assert one.dtype == expected.dtype
        if exact:
            assert torch.equal(one, expected)
        else:
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)


def test_there_is_a_case_for_every_rule() -> None:
    """And no case without one."""
    assert set(CASES) == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RULES))
def test_rows_by_themselves_are_the_rows_of_the_whole(name: str) -> None:
    """Whatever the sizes and arguments: bit for bit where values are moved, else to rounding."""
    local = []
    exact = name in MOVES or "pad" in name or "nearest" in name

    @given(st.data())
    def some(data: st.DataObject) -> None:
        draw = data.draw
        seen, tensors, made = seen_of(name, CASES[name](draw))
        part = rule_for(seen)
        local.append(part is not None)
        if part is None:
            return
        assert part.kind is Kind.LOCAL
        assert part.axis is not None
        rows = made[0].shape[part.axis]
        if not rows or any(not one.numel() for one in tensors):
            return
        check(part, tensors, made, (0, rows), exact=exact)
        for _ in range(3):
            begin = draw(st.integers(0, rows - 1))
            check(part, tensors, made, (begin, draw(st.integers(begin + 1, rows))), exact=exact)

    some()
    assert any(local), "no case of it was run on some rows"


@given(st.data())
def test_pointwise_rows_are_the_rows_of_the_whole(data: st.DataObject) -> None:
    """Of what is broadcast too, with rows of its own or without."""
    seen, tensors, made = seen_of("mul", Case(*_pointwise_case(data)))
    part = rule_for(seen)
    if part is None:
        return
    assert part.axis is not None
    rows = made[0].shape[part.axis]
    begin = data.draw(st.integers(0, rows - 1))
    check(part, tensors, made, (begin, data.draw(st.integers(begin + 1, rows))), exact=True)


def _pointwise_case(data: st.DataObject) -> tuple[Any, ...]:
    case = pointwise(data.draw)
    return case.args, case.axes, aten.mul.Tensor


@given(st.data())
def test_what_is_like_something_has_its_rows(data: st.DataObject) -> None:
    """Copies in another dtype, and zeros of its size."""
    shape = shape_of(data.draw)
    axis = axis_of(data.draw, shape)
    for name in ("clone", "detach", "zeros_like", "silu"):
        seen, tensors, made = seen_of(name, Case((values(shape),), {0: axis}))
        part = rule_for(seen)
        assert part is not None
        check(part, tensors, made, (0, shape[axis]), exact=True)
        check(part, tensors, made, (0, 1), exact=name != "silu")


@pytest.mark.parametrize(
    ("name", "args"),
    [("sort", (0,)), ("roll", ([1], [2])), ("flip", ([2],)), ("cumsum", (2,)), ("mean", ([2, 3],))],
)
def test_what_no_rule_knows_sees_all_rows_and_is_named(name: str, args: tuple[Any, ...]) -> None:
    """It is run on everything at once."""
    funcs = {"sort": aten.sort.default, "mean": aten.mean.dim}
    case = Case((values([1, 2, 5, 4]), *args), {0: 2}, funcs.get(name))
    seen, _, _ = seen_of(name, case)
    assert rule_for(seen) is None
    program = programmed(seen.graph, from_end=2, device=torch.device("cpu"), scratch=lambda *_: 0.0)
    assert program.gathered == (name,)
    assert [part.kind for part in program.parts] == [Kind.WHOLE]


@given(st.data())
def test_a_group_norm_in_two_halves_is_a_group_norm(data: st.DataObject) -> None:
    """Strips of any height, in any dtype, on a signal with a mean far from nothing."""
    draw = data.draw
    space = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))]
    shape += [draw(st.integers(2, 7)) for _ in range(space)]
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    source = (values(shape) + draw(st.sampled_from([0.0, 3.0]))).to(dtype)
    weight, bias = (values([shape[1]]).to(dtype) for _ in range(2))
    args = (source, groups, weight, bias, 1e-5)
    seen, tensors, made = seen_of("group_norm", Case(args, {}, weights=(1, 2)))
    program = programmed(
        seen.graph,
        from_end=draw(st.integers(1, space)),
        device=torch.device("cpu"),
        scratch=lambda *_: 0.0,
    )
    sums, norm = program.parts
    assert (sums.kind, norm.kind) == (Kind.SUMS, Kind.LOCAL)
    axis = program.axes[0]
    edges = sorted({0, shape[axis], *draw(st.lists(st.integers(0, shape[axis]), max_size=3))})
    spans = list(pairwise(edges))
    strips = [
        sums.run([source.narrow(axis, begin, end - begin)], (begin, end), ())
        for begin, end in spans
    ]
    assert sums.finish is not None
    told = {len(tensors) + len(made): sums.finish(strips)}
    for begin, end in spans:
        piece = source.narrow(axis, begin, end - begin)
        every = {0: piece, 1: weight, 2: bias, **told}
        (found,) = norm.run([every[need.value] for need in norm.needs], (begin, end), ())
        expected = functional.group_norm(source.double(), groups, weight.double(), bias.double())
        expected = expected.narrow(axis, begin, end - begin)
        off = (found.double() - expected).abs().max().item()
        near = {torch.float32: 3e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
        assert off <= near
