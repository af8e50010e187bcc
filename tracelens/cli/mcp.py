"""``tracelens mcp``: the analysis for an assistant."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from tracelens.errors import TracelensError, UsageError


@click.command(short_help="Answer an assistant (Model Context Protocol server).")
def mcp() -> None:
    """Answer an assistant's questions about traces, as a Model Context Protocol server on standard input.

    It reads the files it is asked about and writes none. Needs pip install "tracelens-gpu[mcp]".
    """
    server().run("stdio")


def server() -> Any:
    """The server with its tools, not yet listening. Raises UsageError where the extra is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UsageError('the MCP server needs pip install "tracelens-gpu[mcp]"') from None
    from tracelens.assistant import TOOLS
    from tracelens.version import __version__

    def told(tool: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(tool)
        def asked(**options: Any) -> Any:
            try:
                return tool(**options)
            except TracelensError as error:  # any other would be called a crash, its words left out
                raise ToolError(str(error)) from error

        return asked

    made = MCPServer("tracelens", version=__version__, log_level="WARNING")
    for tool in TOOLS:
        made.tool()(told(tool))
    return made
