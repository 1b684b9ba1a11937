"""HTTP on the wire: the data port's protocol, the upstream pool and one exchange between them."""
