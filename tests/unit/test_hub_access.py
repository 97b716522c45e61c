"""What the hub answers to one HEAD request, told apart; a small hub on localhost answers as the real one does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runner.errors import Problem
from runner.preflight import hub_access
from runner.preflight.hub_access import Wanted, check_access

TOKEN = "hf_" + "a1" * 15
ANSWERS = {  # name → (status, X-Error-Code, Location)
    "open/model": (200, "", ""),
    "on/cdn": (302, "", "https://cdn.example/xyz"),
    "cached/here": (307, "", "/api/resolve-cache/models/cached/here/abc/config.json"),
    "old/name": (307, "", "/new/name/resolve/main/config.json"),
    "gated/model": (401, "GatedRepo", ""),
    "gated/refused": (403, "GatedRepo", ""),
    "private/model": (401, "RepoNotFound", ""),
    "gone/model": (404, "RepoNotFound", ""),
    "no/revision": (404, "RevisionNotFound", ""),
    "no/config": (404, "EntryNotFound", ""),
    "wrong/token": (401, "InvalidToken", ""),
    "taken/down": (403, "DisabledRepo", ""),
    "busy/hub": (503, "", ""),
}
seen: list[tuple[str, str, str | None]] = []


class Hub(BaseHTTPRequestHandler):
    """Answers HEAD by the repository's name."""

    def do_HEAD(self) -> None:
        name = self.path.removeprefix("/").partition("/resolve/")[0].removeprefix("datasets/")
        seen.append((self.command, self.path, self.headers.get("Authorization")))
        if name == "slow/hub":
            time.sleep(3)
        status, code, location = ANSWERS.get(name, (404, "RepoNotFound", ""))
        self.send_response(status)
        for header, value in (("X-Error-Code", code), ("Location", location)):
            if value:
                self.send_header(header, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A hub on a free port of this machine, without a token of the user's."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    seen.clear()
    yield address
    server.shutdown()


def asked(name: str, revision: str | None = None) -> list[Problem]:
    return check_access([Wanted("model.hub_id", "model", name, revision)])


@pytest.mark.parametrize("name", ["open/model", "on/cdn", "cached/here"])
def test_what_is_handed_out_is_no_problem(name: str) -> None:
    assert asked(name) == []
    assert seen == [("HEAD", f"/{name}/resolve/main/config.json", None)]


@pytest.mark.parametrize(
    ("name", "token", "why", "fix"),
    [
        ("gated/model", False, "gated and there is no token", "{hub}/gated/model"),
        ("gated/refused", True, "gated and your token has no access", "{hub}/gated/refused"),
        ("private/model", False, "no such model, or it is private and there is no token", "hf auth login"),
        ("private/model", True, "or it is private and your token has no access", "{hub}/settings/tokens"),
        ("gone/model", True, "there is no such model", "{hub}/gone/model"),
        ("no/config", False, "no config.json", "model.hub_id=NAME"),
        ("wrong/token", True, "does not know your token", "{hub}/settings/tokens"),
        ("taken/down", False, "was taken down", "model.hub_id=NAME"),
        ("old/name", False, "renamed to new/name", "use model.hub_id=new/name"),
    ],
)
def test_refusals_are_told_apart(
    name: str, token: bool, why: str, fix: str, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    [problem] = asked(name)
    assert problem.severity == "error"
    assert why in problem.why
    assert fix.format(hub=hub) in problem.fix
    assert seen[0][2] == (f"Bearer {TOKEN}" if token else None)
    assert TOKEN not in problem.line()


def test_a_revision_that_is_not_there() -> None:
    [problem] = asked("no/revision", "v9")
    assert (problem.key, problem.value) == ("model.revision", "v9")
    assert seen[0][1] == "/no/revision/resolve/v9/config.json"


@pytest.mark.alone
def test_a_hub_that_is_busy_or_slow_is_a_warning_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [problem.severity for problem in asked("busy/hub")] == ["warning"]
    monkeypatch.setattr(hub_access, "SECONDS", 0.5)
    began = time.monotonic()
    [problem] = asked("slow/hub")
    assert (problem.severity, time.monotonic() - began < 2.5) == ("warning", True)


def test_a_data_set_has_pages_of_its_own(hub: str) -> None:
    [problem] = check_access([Wanted("dataset.hub_id", "dataset", "gated/model", "v1")])
    assert seen[0][1] == "/datasets/gated/model/resolve/v1/README.md"
    assert f"{hub}/datasets/gated/model" in problem.fix
