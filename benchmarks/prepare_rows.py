"""`python -m benchmarks.prepare_rows DATA CACHE ANSWER`: tokenise a file as a run would; seconds and memory into
ANSWER.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from benchmarks.workload import SAMPLES
from runner.compose import compose_run
from runner.data.prepared import prepare_split
from runner.preflight.check import check
from runner.train import assets

SAMPLE = SAMPLES / "paraphrases" / "validation.jsonl"


def anonymous_bytes() -> int:
    """Resident memory of this process without mapped files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


class Watched:
    """The largest anonymous memory while the block runs, looked at every 20 ms."""

    def __enter__(self) -> Watched:
        self.start = self.peak = anonymous_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def main(data: str, cache: str, answer: str) -> None:
    """Prepare twice: made, then found."""
    overrides = [
        "dataset=files",
        f"dataset.train={data}",
        f"dataset.validation={SAMPLE}",
        "dataset.label_names=['0','1']",
        f"cache_dir={cache}",
    ]
    checked = check(compose_run([*overrides, f"hydra.run.dir={cache}/run"]), starting=False)
    tokenizer = assets.build_tokenizer(checked.config)
    tokenizer(["warm", "up"])
    with Watched() as memory:
        began = time.monotonic()
        prepare_split(checked.recipe, tokenizer, "train")
        seconds = time.monotonic() - began
    began = time.monotonic()
    prepare_split(checked.recipe, tokenizer, "train")
    again = time.monotonic() - began
    Path(answer).write_text(
        json.dumps({"seconds": seconds, "again_seconds": again, "own_memory_bytes": memory.peak - memory.start})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
