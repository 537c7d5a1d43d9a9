"""Run diffusers' own tests with `tightfit.fit` where they place or offload."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from clients import spread

PIPELINES = (
    "test_inference_batch",
    "test_dict_tuple",
    "test_num_images",
    "test_callback",
    "test_cfg",
    "test_save_load_local",
    "test_save_load_optional",
    "test_encode_prompt_works",
    "offload_forward_pass",
    "test_pipeline_level_group_offloading_inference",
    "device_map",
    "test_ip_adapter",
)
MODELS = ("test_cpu_offload", "test_disk_offload", "test_group_offloading")


def main() -> None:
    """A row for each test, written as it is known; files that have rows are not run again."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("root", type=Path, help="their repository, or its tests/ in a folder")
    ask.add_argument("rows", type=Path, help="JSON lines, added to")
    ask.add_argument("--what", choices=("pipelines", "models"), default="pipelines")
    ask.add_argument("--only", default="*", help="files, such as 'flux/*'")
    ask.add_argument("--tests", help="an expression for pytest's -k, in place of ours")
    asked = ask.parse_args()
    rows = asked.rows.read_text().splitlines() if asked.rows.exists() else []
    done = {json.loads(line)["test"].split("::")[0] for line in rows}
    folder = asked.root / "tests" / asked.what
    files = spread([path for path in sorted(folder.glob("*/test_*.py")) if path.match(asked.only)])
    left = [str(path.relative_to(asked.root)) for path in files]
    left = [file for file in left if file not in done]
    usual = PIPELINES if asked.what == "pipelines" else MODELS
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-q"]
    command += ["--continue-on-collection-errors"]
    command += ["-p", "plugin", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=no"]
    command += ["-W", "ignore", "--no-header", "-k", asked.tests or " or ".join(usual), *left]
    here = str(Path(__file__).resolve().parent)
    paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    told = {"PYTHONPATH": paths, "DIFFUSERS_CLIENT_ROWS": str(asked.rows.resolve())}
    if left:
        subprocess.run(command, cwd=asked.root, env={**os.environ, **told}, check=False)


if __name__ == "__main__":
    main()
