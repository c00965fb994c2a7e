"""What `runnel serve` and the other commands are told: a file, the environment, flags; and where each value came from.

- `units`: durations and sizes as people write them.
- `keys`: every key there is, read off the structs that use them.
- `sources`: a TOML file and the environment, as what they say and where.
- `settings`: all of it together; flags win over the environment, which wins over the file.
- `problems`: what was wrong, with the place, and the nearest right name.
"""
