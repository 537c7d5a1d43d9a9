"""Compare every tiny pipeline of diffusers' tests, fitted tightly, with itself on a large card."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import torch
from bits import judge
from clients import clients_in, modules_of, reachable
from device import on_a_virtual_card
from stand_ins import stand_ins


def main() -> None:
    """A row for each, written as it is known; files that have rows are not run again."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("root", type=Path, help="their repository, or its tests/ in a folder")
    ask.add_argument("rows", type=Path, help="JSON lines, added to")
    ask.add_argument("--only", default="*", help="files, such as 'flux/*'")
    ask.add_argument("--seconds", type=int, default=60, help="of the processor, for each pipeline")
    asked = ask.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    reachable(asked.root)
    done = set()
    if asked.rows.exists():
        done = {json.loads(line)["file"] for line in asked.rows.read_text().splitlines()}
    with on_a_virtual_card() as card, stand_ins(), asked.rows.open("a") as out:
        for file, module in modules_of(asked.root, asked.only):
            if file in done:
                continue
            try:
                found = list(clients_in(file, module))
            except Exception as error:
                rows = [{"name": file, "outcome": "cannot run", "reason": f"{error}"[:300]}]
            else:
                rows = [
                    judge(client.name, client, card, seconds=asked.seconds).row()
                    for client in found
                ]
            for row in rows or [{"name": file, "outcome": "none", "reason": "only slow tests"}]:
                out.write(json.dumps({"file": file, **row}) + "\n")
                out.flush()
                print(row["name"], row["outcome"], row.get("reason", ""), file=sys.stderr)


if __name__ == "__main__":
    main()
