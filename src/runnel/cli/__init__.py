"""The `runnel` command: parse, call one function, print, return an exit code."""
