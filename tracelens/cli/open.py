"""``tracelens open``: a trace in ui.perfetto.dev, from this machine and to nowhere else."""

from __future__ import annotations

import click


@click.command("open", short_help="Open a trace in ui.perfetto.dev, without an upload.")
@click.argument("trace", metavar="FILE", type=str)
@click.option("--no-browser", is_flag=True, help="Only print the link.")
def open_trace(trace: str, no_browser: bool) -> None:
    """Open FILE in ui.perfetto.dev, best one that `tracelens analyze --perfetto` wrote.

    The page runs in your browser and fetches FILE from 127.0.0.1:9001; nothing is uploaded. Ends once
    the file has been fetched, or with Ctrl-C.
    """
    import webbrowser

    from tracelens.render.perfetto_serve import TraceServer

    with TraceServer(trace) as server:
        click.echo(server.url)
        if not no_browser and not webbrowser.open_new_tab(server.url):
            click.echo("tracelens: no browser to be found: open the link yourself", err=True)
        click.echo("waiting for the page to fetch the file; Ctrl-C stops", err=True)
        server.wait()
        click.echo("fetched; done", err=True)
