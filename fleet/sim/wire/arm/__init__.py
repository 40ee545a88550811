"""Azure Resource Manager on the wire: what exists, what may be asked, how it looks."""
