"""For all tests."""

import functools

import typer.main

# what a command line is made of takes 60 ms to build, and is the same each time
typer.main.get_command = functools.cache(typer.main.get_command)
