"""The coordinator of one run: launch, follow, deal cases out, commit."""
