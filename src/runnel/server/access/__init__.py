"""Access control of a server: logins, the guard around the backend, ownership of names, and the security log."""
