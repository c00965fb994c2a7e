"""The `runnel` command. Each command family is a module: it parses, calls, prints, and returns an exit code."""
