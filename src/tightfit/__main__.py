"""`python -m tightfit` is the command `tightfit`."""

from tightfit.cli import main

main()
