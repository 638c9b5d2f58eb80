"""What a run leaves in its folder for reports: what was asked, and what was seen and judged."""
