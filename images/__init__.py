"""Machine images: families, immutable versions and their artifacts per provider and region."""
