"""The cost matrix: what each option, policy and backend adds to an operation, and how costs grow with what lies beside.

options      values of every option, derived from the structs and signatures of runnel, and the cells they make
operations   every public operation: how it is set up, and what is timed
growth       the things that there may be many of, and the operations that are timed beside them
backends     memory, folder, server over TCP, blocking API, JSON lines, HTTP, each as a broker that operations use
host         a process that holds servers
measuring    the process that measures cells, one after the other
running      starts measuring processes, and stops those that take too long
tables       the matrix as Markdown

A cell is a ratio to the plain case of the same operation on the same backend, measured in turn with it.
"""
