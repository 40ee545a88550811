"""What providers/gcp.py is made of: codes, nouns, the SDK, calls and launches."""
