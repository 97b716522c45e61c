"""Conversations as people keep them, read into one form: a list of messages with `role` and `content`.

Four layouts are recognised by the columns of a row (`FORMATS`). Roles are mapped to those that chat templates
know: system, user, assistant, tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

# Role as written → role as chat templates know it.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
}


class WrongRow(ValueError):
    """A row that is no conversation; the message says why."""


@dataclass(frozen=True)
class Conversation:
    """Messages, oldest first, and the tools that the template is to announce."""

    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Format:
    """One layout of a row.

    Attributes:
        needs: columns without which a row has not this layout.
        may: further columns that it reads where they are there.
    """

    needs: tuple[str, ...]
    may: tuple[str, ...]
    read: Callable[[dict[str, Any]], list[Message]]


def recognised(row: dict[str, Any], columns: Collection[str]) -> str:
    """Name of the one format whose columns a row has.

    Args:
        columns: all columns of the row, for the message.

    Raises:
        WrongRow: where it is none of them, or several.
    """
    found = [name for name, layout in FORMATS.items() if all(row.get(column) is not None for column in layout.needs)]
    if len(found) == 1:
        return found[0]
    if found:
        raise WrongRow(f"fits several layouts ({', '.join(found)}); say which with task.format={found[0]}")
    layouts = "; ".join(f"{name}: {', '.join(layout.needs)}" for name, layout in FORMATS.items())
    raise WrongRow(
        f"fits no layout of a conversation: it has {', '.join(map(repr, columns)) or 'no columns'}; known are "
        f"{layouts} "
        "(map yours with dataset.columns.NAME=COLUMN)"
    )


def read(row: dict[str, Any], format_name: str, columns: Collection[str]) -> Conversation:
    """The conversation in a row.

    Args:
        row: values by the names in `COLUMNS`; None where a column is empty.
        format_name: one of `FORMATS`, or auto.
        columns: all columns of the row, for the message.

    Raises:
        WrongRow: where the row has not this layout, or a turn has no known role.
    """
    format_name = recognised(row, columns) if format_name == "auto" else format_name
    layout = FORMATS[format_name]
    missing = [name for name in layout.needs if row.get(name) is None]
    if missing:
        raise WrongRow(f"has no {missing[0]!r}, which task.format={format_name} reads")
    messages = layout.read(row)
    if not messages:
        raise WrongRow("has no turn")
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    tools = _decoded(row.get("tools"))
    return Conversation(messages, list(tools) if isinstance(tools, (list, tuple)) and tools else None)


def _decoded(value: object) -> object:
    """A list that a csv or a hub data set keeps as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _turns(value: object, column: str, role_key: str, content_key: str) -> list[Message]:
    """A list of turns, each an object with a role and a content under these keys."""
    turns = _decoded(value)
    if not isinstance(turns, (list, tuple)):
        raise WrongRow(f"{column!r} is no list of turns")
    return [_turn(turn, f"turn {number} of {column!r}", role_key, content_key) for number, turn in enumerate(turns, 1)]


def _turn(turn: object, place: str, role_key: str, content_key: str) -> Message:
    if not isinstance(turn, dict):
        raise WrongRow(f"{place} is no object with {role_key!r} and {content_key!r}")
    written = turn.get(role_key)
    if written is None:
        raise WrongRow(f"{place} has no {role_key!r}; it has {', '.join(map(repr, turn)) or 'nothing'}")
    role = ROLES.get(str(written).strip().lower())
    if role is None:
        raise WrongRow(f"{place} has the role {written!r}; known are {', '.join(sorted(ROLES))}")
    calls = turn.get("tool_calls") or None
    content = _text(turn.get(content_key), place, content_key, may_be_missing=bool(calls))
    if str(written) == "function_call":
        content, calls = _as_call(content)
    kept = {name: turn[name] for name in ("name", "tool_call_id") if turn.get(name)}
    return {"role": role, "content": content, **({"tool_calls": _plain_calls(calls)} if calls else {}), **kept}


def _text(content: object, place: str, key: str, may_be_missing: bool) -> str:
    """Text of a turn; of a list of parts (`{"type": "text", "text": …}`) the texts one after the other."""
    if isinstance(content, str):
        return content
    if content is None and may_be_missing:
        return ""
    if isinstance(content, (list, tuple)) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    kind = "nothing" if content is None else f"a {type(content).__name__}"
    raise WrongRow(f"{place} holds {kind} under {key!r} where text is needed")


def _as_call(content: str) -> tuple[str, list[Any] | None]:
    """ShareGPT's `function_call`: JSON with name and arguments; other text stays the turn's text."""
    call = _decoded(content)
    if isinstance(call, dict) and isinstance(call.get("name"), str):
        return "", [{"type": "function", "function": call}]
    return content, None


def _plain_calls(calls: list[Any]) -> list[Any]:
    """Tool calls with their arguments as a mapping: templates print them, and text would be quoted twice.

    Columns of one arrow table have every key of every row: empty ones are left out.
    """
    plain = []
    for call in calls:
        function = dict(call.get("function") or call) if isinstance(call, dict) else {}
        if not isinstance(function.get("name"), str):
            raise WrongRow("a tool call has no function name")
        arguments = _decoded(function.get("arguments") or {})
        if isinstance(arguments, dict):
            arguments = {name: value for name, value in arguments.items() if value is not None}
        identity = {"id": call["id"]} if isinstance(call, dict) and call.get("id") else {}
        plain.append({**identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return plain


def _messages(row: dict[str, Any]) -> list[Message]:
    return _turns(row["messages"], "messages", "role", "content")


def _sharegpt(row: dict[str, Any]) -> list[Message]:
    """`conversations` of from/value; some data sets keep role/content under that name."""
    turns = _decoded(row["conversations"])
    first = turns[0] if isinstance(turns, (list, tuple)) and turns and isinstance(turns[0], dict) else {}
    keys = ("role", "content") if "from" not in first and "role" in first else ("from", "value")
    return _turns(turns, "conversations", *keys)


def _alpaca(row: dict[str, Any]) -> list[Message]:
    """Instruction and input are one user turn, with a line feed between; `history` holds earlier pairs."""
    turns: list[tuple[Any, Any]] = []
    history = _decoded(row.get("history")) or []
    for pair in history if isinstance(history, (list, tuple)) else [history]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise WrongRow("'history' is no list of pairs of instruction and answer")
        turns.append((pair[0], pair[1]))
    question = _text(row["instruction"], "the row", "instruction", may_be_missing=False)
    if row.get("input"):
        question += "\n" + _text(row["input"], "the row", "input", may_be_missing=False)
    return _pairs([*turns, (question, row["output"])], ("instruction", "output"))


def _prompt_completion(row: dict[str, Any]) -> list[Message]:
    """Two texts, or two lists of messages."""
    prompt, completion = _decoded(row["prompt"]), _decoded(row["completion"])
    if isinstance(prompt, (list, tuple)) and isinstance(completion, (list, tuple)):
        return _turns(prompt, "prompt", "role", "content") + _turns(completion, "completion", "role", "content")
    return _pairs([(row["prompt"], row["completion"])], ("prompt", "completion"))


def _pairs(pairs: list[tuple[Any, Any]], keys: tuple[str, str]) -> list[Message]:
    return [
        {"role": role, "content": _text(text, "the row", key, may_be_missing=False)}
        for pair in pairs
        for role, text, key in zip(("user", "assistant"), pair, keys, strict=True)
    ]


FORMATS = {
    "messages": Format(("messages",), ("tools",), _messages),
    "sharegpt": Format(("conversations",), ("system", "tools"), _sharegpt),
    "alpaca": Format(("instruction", "output"), ("input", "system", "history"), _alpaca),
    "prompt_completion": Format(("prompt", "completion"), ("system", "tools"), _prompt_completion),
}
COLUMNS = tuple(dict.fromkeys(name for layout in FORMATS.values() for name in (*layout.needs, *layout.may)))
