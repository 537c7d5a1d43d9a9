"""From rows of the checks to `results.json`, and from that to the page in `docs/`."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = HERE.parents[1] / "docs" / "diffusers-tests.md"

OUTCOMES = ("same bits", "other bits", "not finite", "tight", "refused", "failed", "cannot run")
TESTS = ("passed", "equal", "refused", "failed", "cannot run", "skipped")


def collected(
    bits: Iterable[dict[str, Any]], tests: Iterable[dict[str, Any]], about: dict[str, str]
) -> dict[str, Any]:
    """What is kept: every pipeline; of tests, counts by folder, and each that did not pass."""
    counts: dict[str, dict[str, Counter[str]]] = {"pipelines": {}, "models": {}}
    names: dict[str, Counter[str]] = defaultdict(Counter)
    others = []
    for row in {each["test"]: each for each in tests}.values():
        _, what, folder, *_ = row["test"].split("/")
        counts[what].setdefault(folder, Counter())[row["outcome"]] += 1
        names[_plain(row["test"])][row["outcome"]] += 1
        if row["outcome"] not in ("passed", "equal", "skipped"):
            others.append({**row, "reason": _short(row["reason"])})
    last = {each["name"]: each for each in bits if each["outcome"] != "none"}
    return {
        "about": about,
        "bits": [
            {**each, "reason": _short(each.get("reason", ""))}
            for each in sorted(last.values(), key=lambda row: str(row["name"]))
        ],
        "tests": {what: dict(sorted(rows.items())) for what, rows in counts.items()},
        "names": dict(sorted(names.items())),
        "others": others,
    }


def page(results: dict[str, Any]) -> str:
    """The whole of `docs/diffusers-tests.md`."""
    about, bits = results["about"], results["bits"]
    whole = Counter(row["outcome"] for row in bits)
    ran = [row for row in bits if row["outcome"] == "same bits"]
    squeezed = sum(row["share"] is not None for row in ran)
    lines = [
        _HEAD.format(**about),
        "## The same bits in less memory",
        "",
        _BITS.format(
            same=whole["same bits"],
            all=len(bits),
            runs=len(bits) - whole["cannot run"],
            squeezed=squeezed,
            streamed=len(ran) - squeezed,
        ),
        "",
        *_table("folder", OUTCOMES, _by_folder(bits)),
        "",
        *_reasons("What is not so", [row for row in bits if row["outcome"] != "same bits"], "name"),
    ]
    for what, title in (("pipelines", "Their tests of pipelines"), ("models", "and of models")):
        lines += ["", f"## {title}", "", *_table("folder", TESTS, results["tests"][what])]
    lines += ["", "By test:", "", *_table("test", TESTS, results["names"]), ""]
    lines += _reasons("Which did not pass", results["others"], "test")
    return "\n".join(lines) + "\n"


_HEAD = """# diffusers' own tests

diffusers tests its pipelines with tiny ones: {folders} folders of them. Nobody here wrote them, so
they are good clients of `tightfit.fit`. They are in its repository alone; what was run is version
{tests} of it (commit `{commit}`, the newest that was to be had), with diffusers {diffusers}
installed. Of it nothing is kept here but this list. It is written by
`tools/diffusers_client/summary.py`.

```sh
git clone https://github.com/huggingface/diffusers .diffusers-tests  # ignored by git
pip install --no-deps --target .diffusers-tests/.libs parameterized requests-mock ftfy wcwidth \\
    torchsde trampoline sentencepiece protobuf opencv-python-headless torchvision
export HF_HUB_OFFLINE=1
python tools/diffusers_client/check_bits.py .diffusers-tests bits.jsonl
python tools/diffusers_client/check_tests.py .diffusers-tests tests.jsonl
python tools/diffusers_client/check_tests.py .diffusers-tests tests.jsonl --what models
python tools/diffusers_client/summary.py bits.jsonl tests.jsonl
```

Each goes on where it was stopped; `--only 'flux/*'` takes one folder. Everything runs on a virtual
card. What their tests download is made on the spot (`stand_ins.py`): tokenizers of letters, and
tiny encoders with seeded weights. This list is of a part: of each folder one file at least, and
such of their tests as place a pipeline. It grows as the commands are run on.

What pipelines do with a part beside calling it: they read a weight of it (ACE-Step:
`silence_latent` of its condition encoder), move it (Cosmos its safety checker), or call a part of
it alone (MotifVideo the vision tower of its encoder). All of that is as if it were not fitted. A
weight of a layer within a part is not to be read so: while it is away, it shows NaN. Compared is
with weights that want no gradients, as fitted ones never do: PyTorch rounds otherwise where they do
(the VAE of HunyuanVideo is one that shows it).
"""

_BITS = """Each pipeline is made and called twice as their tests do: as it is on a large card, and
fitted with half of the memory that this took (or three quarters, or 95 %; else with every weight
streamed). The picture, or else what the VAE is given to decode, has to be the same bit for bit as
that of the pipeline as it is, or as that of the one that is fitted with room for all: an encoder is
given another memory format there, and rounds in another way. Of {all} pipelines that were
tried {runs} run here at all, and {same} are the same; {squeezed} of those in less memory,
{streamed} where calls need nearly all of it, and weights hardly any."""


def _table(head: str, columns: Iterable[str], rows: dict[str, Any]) -> list[str]:
    used = [name for name in columns if any(counts.get(name) for counts in rows.values())]
    lines = [f"| {head} | {' | '.join(used)} |", f"|---|{'---:|' * len(used)}"]
    for name, counts in rows.items():
        lines.append(f"| {name} | {' | '.join(str(counts.get(one) or '') for one in used)} |")
    total = Counter[str]()
    for counts in rows.values():
        total.update(counts)
    return [*lines, f"| **all** | {' | '.join(str(total[one]) for one in used)} |"]


def _by_folder(rows: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["name"].split("/")[0], Counter())[row["outcome"]] += 1
    return found


def _reasons(title: str, rows: Iterable[dict[str, Any]], key: str) -> list[str]:
    """Rows of the same outcome and reason on one line."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        found[row["outcome"], row["reason"]].append(_plain(row[key], whole=True))
    lines = [f"{title}:", ""]
    for (outcome, reason), names in sorted(found.items()):
        some = ", ".join(f"`{name}`" for name in sorted(names)[:4])
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        lines.append(f"- **{outcome}**: {reason or 'no sentence'} ({some}{more})")
    return lines if found else []


def _plain(name: str, *, whole: bool = False) -> str:
    """Of a test its name alone, or with its file; without parameters."""
    path, *parts = re.sub(r"\[.*\]$", "", name).split("::")
    file = path.rsplit("/", 1)[-1].removesuffix(".py").removeprefix("test_")
    return f"{file}::{'::'.join(parts)}" if whole else parts[-1]


def _short(reason: str) -> str:
    """A line of it that is the same wherever it happened."""
    text = re.sub(r" \((?:[\w.]+/)?[\w.]+\.py:\d+\)$", "", reason)
    text = re.sub(r"https?://\S+", "…", text)
    text = re.sub(r"`[A-Z]\w+`", "`…`", text)
    return text if len(text) <= _LONG else text[:_LONG].rsplit(" ", 1)[0] + " …"


_LONG = 200


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of JSON, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """Without rows, the page is written anew from the results that are kept."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("rows", nargs="*", type=Path, help="bits.jsonl and tests.jsonl")
    ask.add_argument("--version", default="", help="of their tests")
    ask.add_argument("--commit", default="", help="of their tests")
    asked = ask.parse_args()
    if asked.rows:
        import diffusers

        rows = [row for path in asked.rows for row in read(path)]
        bits = [row for row in rows if "test" not in row]
        folders = {row["file"].split("/")[0] for row in bits}
        about = {
            "tests": asked.version,
            "commit": asked.commit,
            "diffusers": diffusers.__version__,
            "folders": str(len(folders)),
        }
        made = collected(bits, [row for row in rows if "test" in row], about)
        RESULTS.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
