"""What watches a push while it runs: progress first, deadlines as a backstop."""
