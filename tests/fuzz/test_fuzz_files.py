"""Whatever is in a file: a proper result or an error of ours, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import fuzz_files
import pytest
from fuzz_files import EDITS, KINDS, Edit, Seeds, drawn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

edits = st.lists(
    st.builds(
        Edit,
        kind=st.sampled_from(EDITS),
        at=st.floats(0, 1, exclude_max=True),
        head=st.booleans(),
        number=st.integers(0, 2**16 - 1),
        length=st.integers(1, 199),
        text=st.binary(min_size=1, max_size=24),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return Seeds(tmp_path_factory.mktemp("fuzz") / "files")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=200,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(edits=edits, mend=st.booleans())
def test_a_mutated_file_is_read_or_refused_in_our_words(
    kind: str, edits: list[Edit], mend: bool, seeds: Seeds
) -> None:
    """A path and a reason; never another library's error, never half an output."""
    assert seeds.check(kind, edits, mend=mend) in ("read", "refused")


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_as_it_was_is_read(kind: str, seeds: Seeds) -> None:
    """Or nothing would be tested by mutating it."""
    assert seeds.check(kind, [], mend=False) == "read"


def test_what_the_fuzzer_looks_for_is_found(seeds: Seeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another library, one without the path, and a file left behind."""

    def foreign(path: Path) -> object:
        raise KeyError("of another library")

    def nameless(path: Path) -> object:
        raise fuzz_files.TightfitError("something is wrong")

    def untidy(path: Path) -> object:
        path.with_name("half.png").touch()
        raise fuzz_files.TightfitError(f"Cannot read {path}.")

    for door, says in ((foreign, "KeyError"), (nameless, "name the file"), (untidy, "half.png")):
        monkeypatch.setitem(fuzz_files._SEEDS, "png", ("a.png", (door,)))
        with pytest.raises(AssertionError, match=says):
            seeds.check("png", drawn(1), mend=False)
    assert not (seeds.folder / "half.png").exists()
