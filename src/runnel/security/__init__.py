"""Who may do what: principals, rules, tokens and claims. Decisions only: files, sockets and clocks are elsewhere."""
