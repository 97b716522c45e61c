"""`docs/configuration.md`, written from the schema: `python -m runner.documentation > docs/configuration.md`."""

from __future__ import annotations

from pydantic import BaseModel

from runner.compose.app import group_options
from runner.config.catalogue import option_files
from runner.config.schema import RunConfig

OPENING = """# Configuration

Written from `runner/config/schema.py` and `conf/` by `make docs`; `python -m runner keys [TEXT]` prints the same keys.
A key is set with `section.key=value`, a group's option with `group=option`. An unknown key, a wrong type and a
value out of range are errors, and so is a key that nothing in the run would read.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([OPENING, "## Groups\n", *_groups(), "\n## Keys\n", *_sections()]).rstrip() + "\n"


def _groups() -> list[str]:
    lines = ["| group | options |", "|---|---|"]
    return lines + [
        f"| `{group}` | {', '.join(f'`{option}`' for option in options)} |"
        for group, options in group_options().items()
        if options and option_files(group)
    ]


def _sections() -> list[str]:
    lines: list[str] = []
    loose = []
    for name, field in RunConfig.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            lines += [f"### {name}\n", (section.__doc__ or "").strip() + "\n", *_table(section, f"{name}."), ""]
        else:
            loose.append(name)
    return [*lines, "### Top level\n", *_table(RunConfig, "", loose)]


def _table(section: type[BaseModel], prefix: str, only: list[str] | None = None) -> list[str]:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        if only is None or name in only:
            default = str(field.default).replace("|", "\\|")
            meaning = (field.description or "").replace("|", "\\|")
            rows.append(f"| `{prefix}{name}` | `{default}` | {meaning} |")
    return rows


if __name__ == "__main__":
    print(page(), end="")
