"""What providers/oci.py is made of: codes, nouns, the SDK, calls."""
