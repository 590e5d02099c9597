"""`python -m recurtrace`."""

from recurtrace.cli import main

main()
