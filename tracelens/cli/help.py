"""``--help`` of many options under headings, and the values that a shell completes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

#: The heading of what ``gate_options`` adds.
GATES = {"In CI": ("fail_on", "if_unknown", "annotations", "list_metrics")}


class Grouped(click.Command):
    """A command whose options stand under headings; those that no heading names come last."""

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **options: Any):
        super().__init__(*args, **options)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        params = {one.name or "": one for one in self.get_params(ctx) if isinstance(one, click.Option)}
        sections = {heading: [params.pop(name) for name in names] for heading, names in self.groups.items()}
        for heading, of_group in {**sections, "Options": list(params.values())}.items():
            rows = [row for param in of_group if (row := param.get_help_record(ctx)) is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)


def complete_gpu(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys of the GPU table."""
    from tracelens.hardware import list_gpus

    return [
        CompletionItem(gpu.name, help=gpu.title) for gpu in list_gpus() if gpu.name.startswith(incomplete)
    ]


def complete_rule(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and slugs of the rules."""
    from tracelens.rules.catalog import RULES

    names = [(rule.id, rule.title) for rule in RULES] + [(rule.slug, rule.title) for rule in RULES]
    return [
        CompletionItem(name, help=title)
        for name, title in names
        if name.lower().startswith(incomplete.lower())
    ]
