"""``python -m tracelens``."""

from tracelens.cli import main

main()
