"""What the Oracle skin (fleet/sim/wire/oci.py) is made of."""
