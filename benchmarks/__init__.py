"""How fast, against whom, under which conditions: one file per question.

harness      rounds, medians, ratios, aims; what every question shares
conditions   the machine, the versions, the disk: what a figure is worth nothing without
load         what is published, and the check that every subscriber got all of it
peers/       what a user would reach for instead, each called the best way it allows
fanout       1 publisher, 10 subscribers, one process: what does a delivery cost?
subscribers  does publishing get dearer with more subscribers?
topics       what do 100,000 topics cost?
latency      how long from publish to receive?
groups       1 group, 4 members: what does an acked delivery cost, and what does the group remember?
durable and others are measured on a disk: see `python -m benchmarks --help`
network      a server, its clients and TCP, from process to process: what do a publish and a delivery cost?
network_*    how long from publish to receive; how many awaited publishes
roads, crew  a client's way to a server, the same for all; the processes that such a measurement takes
matrix/      what every option, policy and backend adds to an operation, and how costs grow with what lies beside
results      what was measured, in results/, with commit, date and command
published    docs/benchmarks.md, from these files

`python -m benchmarks --help` says how to run them.
"""
