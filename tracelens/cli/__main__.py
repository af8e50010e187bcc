"""``python -m tracelens.cli``."""

from tracelens.cli import main

main()
