"""The broker's side of a connection: packed batches in, packed batches out."""
