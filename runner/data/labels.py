"""Label values → class ids: one map, built from the training split."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

HIDDEN = -1  # GLUE's mark for a label that is not published


PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")  # "01" is a name: it must not meet "1"


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


def as_label(value: object) -> object:
    """A label as it is meant: `"2"`, `2` and `2.0` are one label; other text is stripped."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        text = value.strip()
        return _number(text) if PLAIN_NUMBER.fullmatch(text) else text
    return value


def distinct(encoded: Iterable[str]) -> list[object]:
    """Distinct labels of a scan (JSON texts), hidden and missing ones left out, numbers before text, sorted."""
    values = {as_label(json.loads(text)) for text in encoded}
    known = [value for value in values if value is not None and value != HIDDEN]
    return sorted(known, key=lambda value: (isinstance(value, str), value))


def names_fit(found: list[object], names: list[str]) -> bool:
    """Whether every label is one of the names, or every label is the id of one."""
    return set(map(str, found)) <= set(names) or all(
        isinstance(value, int) and 0 <= value < len(names) for value in found
    )


def label_names(found: list[object], configured: list[str] | None) -> list[str]:
    """Names of the classes by id: the configured ones, which must fit, else the sorted values."""
    return list(configured) if configured else [str(value) for value in found]


class LabelMap:
    """Class ids of raw label values.

    Args:
        names: class names in order of their ids.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = list(names)
        self._by_name = {name: index for index, name in enumerate(names)}

    def in_model(self) -> dict[str, object]:
        """The keys of a model's configuration that say which classes its head has."""
        return {"num_labels": len(self.names), "id2label": dict(enumerate(self.names)), "label2id": dict(self._by_name)}

    def __contains__(self, value: object) -> bool:
        return self._find(value) is not None

    def id_of(self, value: object) -> int:
        """The class id; −1 for a hidden or missing label.

        Raises:
            KeyError: for a label that is not in the map.
        """
        found = self._find(value)
        if found is None:
            raise KeyError(value)
        return found

    def _find(self, value: object) -> int | None:
        label = as_label(value)
        if str(label) in self._by_name:
            return self._by_name[str(label)]
        if label is None or label == HIDDEN:
            return HIDDEN
        names_are_text = not all(name.lstrip("-").replace(".", "").isdigit() for name in self.names)
        if names_are_text and isinstance(label, int) and 0 <= label < len(self.names):
            return label
        return None
