"""Configuration of `runnel serve` and the other commands: a file, the environment, flags.

- `keys`: every configuration key, derived from the structs that use them.
- `settings`: reads all sources; flags override the environment, which overrides the file.
- `history`: the tables that say where old records are kept.
- `units`: durations and sizes as people write them.
- `errors`: the problem, its place, and the nearest valid name.
"""
