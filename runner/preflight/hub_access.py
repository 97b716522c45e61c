"""Whether the hub hands out what a run needs: one HEAD request for each name, before ranks start, told in the hub's
terms.

The hub answers 401, 403 and 404 in similar words; its headers `X-Error-Code` and `X-Error-Message` say which it is.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.message import Message
from typing import IO, Literal
from urllib.parse import quote, unquote, urlparse

from typing_extensions import override

from runner import paths
from runner.errors import Problem

SECONDS = 10.0
Kind = Literal["model", "dataset"]


@dataclass(frozen=True)
class Wanted:
    """A repository of the hub: the key that names it, and the revision asked for."""

    key: str
    kind: Kind
    name: str
    revision: str | None

    @property
    def page(self) -> str:
        """Its page, where licences are accepted."""
        return f"{endpoint()}/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"

    @property
    def url(self) -> str:
        """What is asked for: a small file that every repository of this kind has."""
        file = "config.json" if self.kind == "model" else "README.md"
        return f"{self.page}/resolve/{quote(self.revision or 'main', safe='')}/{file}"


@dataclass
class Answer:
    """Status and headers; no status where none came in time."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


def endpoint() -> str:
    """Address of the hub or of its mirror."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """The user's token for the hub, from the environment or where `hf auth login` keeps it."""
    named = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    try:
        return named or paths.hf_token_path().read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def check_access(wanted: list[Wanted]) -> list[Problem]:
    """Problems of all names, asked at the same time; a hub that does not answer is a warning."""
    answers = [Answer() for _ in wanted]
    threads = [
        threading.Thread(target=_ask, args=pair, daemon=True)  # a name look-up obeys no time limit
        for pair in zip(wanted, answers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return [problem for pair in zip(wanted, answers, strict=True) for problem in _problems(*pair)]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    @override
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def _ask(wanted: Wanted, answer: Answer) -> None:
    own = token()
    headers = {"User-Agent": "finetune-runner", **({"Authorization": f"Bearer {own}"} if own else {})}
    request = urllib.request.Request(wanted.url, method="HEAD", headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=SECONDS) as response:
            answer.headers, answer.status = _lower(response.headers), response.status
    except urllib.error.HTTPError as error:
        answer.headers, answer.status = _lower(error.headers), error.code
    except (OSError, ValueError):
        return


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _problems(wanted: Wanted, answer: Answer) -> list[Problem]:
    status = answer.status
    if status is None or status >= 500 or status == 429:
        said = "did not answer in time" if status is None else f"answered {status}"
        why = f"the hub ({endpoint()}) {said}: whether it hands this out is not known yet"
        return [Problem(wanted.key, wanted.name, why, "", "warning")]
    if 300 <= status < 400:
        moved = _new_name(wanted, answer.headers.get("location", ""))
        return (
            [Problem(wanted.key, wanted.name, f"it was renamed to {moved}", f"use {wanted.key}={moved}")]
            if moved
            else []
        )
    return [] if status < 300 else [_refusal(wanted, answer)]


def _new_name(wanted: Wanted, location: str) -> str | None:
    """The new name in a redirect to another repository; None for one to the place where the file's bytes lie."""
    target = urlparse(location)
    if target.netloc and target.netloc != urlparse(endpoint()).netloc:
        return None
    match = re.match(r"^/(?:datasets/)?([^/]+(?:/[^/]+)?)/resolve/", unquote(target.path))
    return match[1] if match and match[1] != wanted.name and not match[1].startswith("api/") else None


def _refusal(wanted: Wanted, answer: Answer) -> Problem:  # noqa: C901
    code, said = answer.headers.get("x-error-code", ""), answer.headers.get("x-error-message", "")
    own, kind = token(), "data set" if wanted.kind == "dataset" else "model"
    tokens = f"{endpoint()}/settings/tokens"
    why, fix = f"the hub answered {answer.status} ({code or said or 'no reason given'})", f"look at {wanted.page}"
    if answer.status == 401 and own and (code == "InvalidToken" or re.search("invalid|expired", said, re.IGNORECASE)):
        why, fix = (
            "the hub does not know your token (wrong or expired)",
            f"make a new one on {tokens}, then `hf auth login`",
        )
    elif code == "GatedRepo" and not own:
        why = f"this {kind} is gated and there is no token of yours on this machine"
        fix = f"accept its licence on {wanted.page}, then `hf auth login` (or export HF_TOKEN)"
    elif code == "GatedRepo":
        why = f"this {kind} is gated and your token has no access to it"
        fix = f"accept its licence on {wanted.page}, and let the token read gated repositories on {tokens}"
    elif code == "RevisionNotFound":
        key = wanted.key.partition(".")[0] + ".revision"
        return Problem(key, wanted.revision, f"{wanted.name} has no such revision", f"look at {wanted.page}/tree/main")
    elif code == "EntryNotFound":
        if wanted.kind == "dataset":
            return Problem(wanted.key, wanted.name, "it has no README.md", "", "notice")
        why, fix = "it has no config.json: it is no model of transformers", f"choose another {wanted.key}=NAME"
    elif code == "DisabledRepo" or answer.status in (410, 451):
        why, fix = f"this {kind} was taken down", f"choose another {wanted.key}=NAME"
    elif code == "RepoNotFound" or answer.status in (401, 404):
        if own:
            why = f"there is no such {kind}, or it is private and your token has no access to it"
            fix = f"check the name on {wanted.page}, and what the token may read on {tokens}"
        else:
            why = f"there is no such {kind}, or it is private and there is no token of yours on this machine"
            fix = f"check the name on {wanted.page}, or `hf auth login` (or export HF_TOKEN) for a private one"
    elif answer.status == 403:
        why, fix = "your token has no access to it", f"let it read this repository on {tokens}"
    return Problem(wanted.key, wanted.name, why, fix)
